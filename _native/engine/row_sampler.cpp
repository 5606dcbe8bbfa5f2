#include "row_sampler.h"

#include <algorithm>
#include <cmath>
#include <stdexcept>

#include "error.h"

namespace llamaserve {
namespace {

// More candidates than this share of the vocabulary are not found faster than all of them.
constexpr int32_t n_vocab_per_candidate = 32;

// Likely tokens looked for beyond those needed where a mask may bar some.
constexpr size_t n_maybe_barred = 64;

}  // namespace

RowSampler::RowSampler(const SamplerSpec & spec, const Model & model)
    : RowSampler(spec, model, all_biases(spec, model)) {}

RowSampler::RowSampler(const SamplerSpec & spec, const Model & model, const std::vector<llama_logit_bias> & biases)
    : n_vocab_(model.n_vocab()), chain_(make_sampler(spec, model, biases)), rules_(spec, model, biases),
      n_likeliest_(spec.n_likeliest()), n_moved_most_(spec.n_looked_back()) {
    for (const llama_logit_bias & bias : biases) {
        biased_.push_back(bias.token);
    }
}

void RowSampler::show_history(const std::vector<llama_token> & tokens) {
    if (n_moved_most_ == 0) {
        return;
    }
    for (const llama_token token : tokens) {
        look_back_on(token);
    }
}

void RowSampler::look_back_on(llama_token token) {
    llama_sampler_accept(chain_.get(), token);
    if (n_moved_most_ > 0) {
        if (moved_.size() >= n_moved_most_) {
            moved_.pop_front();
        }
        moved_.push_back(token);
    }
}

llama_token RowSampler::draw(const float * logits, const TokenMask * mask) {
    if (!rules_.allowed().empty()) {
        fill_from(rules_.allowed(), logits);
    } else if (!fill_likeliest(logits, mask)) {
        fill_candidates(logits);
    }
    if (mask != nullptr) {
        mask->keep(candidates_);
    }
    llama_token_data_array array{candidates_.data(), candidates_.size(), -1, false};
    if (array.size == 0) {
        throw NoTokenError();
    }
    llama_sampler_apply(chain_.get(), &array);
    if (array.selected < 0 || array.selected >= (int64_t) array.size) {
        throw std::runtime_error("the sampler selected no token");
    }
    if (mask != nullptr && !std::isfinite(array.data[array.selected].logit)) {
        throw NoTokenError();
    }
    const llama_token token = array.data[array.selected].id;
    look_back_on(token);
    rules_.take_note(token);
    return token;
}

// Tokens that may not be drawn are left out: to the samplers that is as if their logits were -inf, but none of them has to
// count with tokens of no probability.
void RowSampler::fill_candidates(const float * logits) {
    candidates_.resize(n_vocab_);
    for (llama_token id = 0; id < n_vocab_; id++) {
        candidates_[id] = {id, logits[id], 0.0f};
    }
    const std::vector<llama_token> & barred = rules_.barred();
    if (!barred.empty()) {
        const auto is_barred = [&barred](const llama_token_data & candidate) {
            return std::binary_search(barred.begin(), barred.end(), candidate.id);
        };
        candidates_.erase(std::remove_if(candidates_.begin(), candidates_.end(), is_barred), candidates_.end());
    }
}

void RowSampler::fill_from(const std::vector<llama_token> & ids, const float * logits) {
    const std::vector<llama_token> & barred = rules_.barred();
    candidates_.clear();
    for (const llama_token id : ids) {
        if (barred.empty() || !std::binary_search(barred.begin(), barred.end(), id)) {
            candidates_.push_back({id, logits[id], 0.0f});
        }
    }
}

// At most m logits move or are barred, so of the k + m largest at least k stay where they are: whatever is below those
// cannot be among the k likeliest. False where that is not worth it, or where two of them, or the last and the one below
// it, are equal: llama.cpp's sort says which of equal tokens comes first by where they stand among all. The likeliest token
// alone is the first of equals in both.
bool RowSampler::fill_likeliest(const float * logits, const TokenMask * mask) {
    const bool   is_one = n_likeliest_ == 1 && mask == nullptr;  // a mask may leave equals behind those that were found
    const size_t n      = (size_t) n_likeliest_ + biased_.size() + moved_.size() + rules_.barred().size() +
                     (is_one ? 0 : 1);
    if (n_likeliest_ <= 0 || n > (size_t) (n_vocab_ / n_vocab_per_candidate)) {
        return false;
    }
    ids_ = top_.find(logits, n_vocab_, (int32_t) (mask == nullptr ? n : n + n_maybe_barred));
    if (mask != nullptr) {  // those that it allows of the largest are the largest of those that it allows
        mask->keep(ids_);
    }
    if (ids_.size() < n) {
        return false;
    }
    ids_.insert(ids_.end(), biased_.begin(), biased_.end());
    ids_.insert(ids_.end(), moved_.begin(), moved_.end());
    std::sort(ids_.begin(), ids_.end());
    ids_.erase(std::unique(ids_.begin(), ids_.end()), ids_.end());
    fill_from(ids_, logits);
    return is_one || !has_equal_logits();
}

bool RowSampler::has_equal_logits() {
    sorted_.clear();
    for (const llama_token_data & candidate : candidates_) {
        sorted_.push_back(candidate.logit);
    }
    std::sort(sorted_.begin(), sorted_.end());
    return std::adjacent_find(sorted_.begin(), sorted_.end()) != sorted_.end();
}

}  // namespace llamaserve
