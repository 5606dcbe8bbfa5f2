#include "dry_breakers.h"

#include <algorithm>
#include <optional>
#include <string_view>

#include "error.h"
#include "model.h"

namespace llamaserve {
namespace {

// What is kept: for all requests that may wait by default with as many breakers as they may have, some 30 MB at most.
constexpr size_t most_kept           = 4096;  // breakers; clients choose them
constexpr size_t most_kept_sequences = 524'288;
constexpr size_t most_tail      = 20;    // tokens, as in llama_sampler_init_dry
constexpr size_t most_sequences = 8192;  // about a millisecond for each request

// How many bytes at the end of a word are the beginning of a text, each way in which they can be; not the whole text.
template <typename Take> void for_each_overlap(std::string_view word, std::string_view text, const Take & take) {
    for (size_t pos = word.find(text[0]); pos != std::string_view::npos; pos = word.find(text[0], pos + 1)) {
        const std::string_view end = word.substr(pos);
        if (end.size() < text.size() && text.substr(0, end.size()) == end) {
            take(end.size());
        }
    }
}

}  // namespace

DryBreakers::Found DryBreakers::find(const std::vector<std::string> & texts) const {
    Found all;
    for (const std::string & text : texts) {
        const auto found = find_one(text);
        if (all.size() + found->size() > most_sequences) {
            throw BadSamplerError("dry_sequence_breakers",
                                  "texts in " + std::to_string(all.size() + found->size()) + " tokens",
                                  "texts in at most " + std::to_string(most_sequences));
        }
        all.insert(all.end(), found->begin(), found->end());
    }
    return all;
}

std::shared_ptr<const DryBreakers::Found> DryBreakers::find_one(const std::string & text) const {
    {
        const std::lock_guard<std::mutex> lock(mutex_);
        const auto                        known = kept_.find(text);
        if (known != kept_.end()) {
            known->second.used_at = ++clock_;
            return known->second.found;
        }
    }
    const std::shared_ptr<const Found> found = search(text);
    const std::lock_guard<std::mutex>  lock(mutex_);
    if (kept_.count(text) == 0) {  // nobody has searched for it meanwhile
        make_room(found->size());
        kept_[text] = {found, ++clock_};
        n_kept_ += found->size();
    }
    return found;
}

// Forgets those that were not asked for the longest, until one more of so many sequences has room.
void DryBreakers::make_room(size_t n_sequences) const {
    while (!kept_.empty() && (kept_.size() >= most_kept || n_kept_ + n_sequences > most_kept_sequences)) {
        const auto oldest = std::min_element(kept_.begin(), kept_.end(), [](const auto & one, const auto & other) {
            return one.second.used_at < other.second.used_at;
        });
        n_kept_ -= oldest->second.found->size();
        kept_.erase(oldest);
    }
}

std::shared_ptr<const DryBreakers::Found> DryBreakers::search(const std::string & text) const {
    auto found = std::make_shared<Found>();
    if (text.empty()) {
        return found;
    }
    std::call_once(is_read_, [this] { read_vocabulary(); });
    std::vector<std::optional<std::vector<llama_token>>> tails(text.size());  // by the bytes that were said before
    size_t                                               start = 0;
    for (llama_token id = 0; id < (llama_token) ends_.size(); id++) {
        const std::string_view word(texts_.data() + start, ends_[id] - start);
        start = ends_[id];
        if (word.find(text) != std::string_view::npos) {
            found->push_back({id});
            continue;
        }
        for_each_overlap(word, text, [&](size_t n_said) {
            auto & tail = tails[n_said];
            if (!tail) {
                tail = model_.tokenize(text.substr(n_said), false, false);
                tail->resize(std::min(tail->size(), most_tail));
            }
            auto & sequence = found->emplace_back(1, id);
            sequence.insert(sequence.end(), tail->begin(), tail->end());
        });
    }
    return found;
}

void DryBreakers::read_vocabulary() const {
    std::vector<char> buffer(256);
    for (llama_token id = 0; id < model_.n_vocab(); id++) {
        const auto read = [&] {
            return llama_detokenize(model_.vocab(), &id, 1, buffer.data(), (int32_t) buffer.size(), false, true);
        };
        int32_t n_bytes = read();
        if (n_bytes < 0) {
            buffer.resize(-n_bytes);
            n_bytes = read();
        }
        texts_.append(buffer.data(), std::max(0, n_bytes));
        ends_.push_back(texts_.size());
    }
}

}  // namespace llamaserve
