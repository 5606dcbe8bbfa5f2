#include "row_sampler.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <stdexcept>

#include "error.h"

namespace llamaserve {
namespace {

// More candidates than this share of the vocabulary, or than this, are not found faster than all are looked at.
constexpr int32_t n_vocab_per_candidate = 160;
constexpr int32_t most_candidates       = 768;

// Likely tokens looked for beyond those needed where a mask may bar some.
constexpr size_t n_maybe_barred = 64;

bool is_ban(const llama_logit_bias & bias) { return bias.bias == -INFINITY; }

// Writes tokens as candidates, in ascending order, as what is an exception among them has it.
class CandidateWriter {
public:
    CandidateWriter(const float * logits, const std::vector<llama_logit_bias> & exceptions, llama_token_data * out)
        : logits_(logits), next_(exceptions.data()), end_(next_ + exceptions.size()), out_(out) {
        watch_next();
    }

    void write(llama_token token) {
        while (next_token_ < token) {
            next_++;
            watch_next();
        }
        if (next_token_ != token) {
            *out_++ = {token, logits_[token], 0.0f};
        } else if (!is_ban(*next_)) {
            *out_++ = {token, logits_[token] + next_->bias, 0.0f};
        }
    }

    // One behind the last.
    llama_token_data * end() const { return out_; }

private:
    void watch_next() { next_token_ = next_ == end_ ? std::numeric_limits<llama_token>::max() : next_->token; }

    const float *            logits_;
    const llama_logit_bias * next_;
    const llama_logit_bias * end_;
    llama_token              next_token_ = 0;
    llama_token_data *       out_;
};

}  // namespace

RowSampler::RowSampler(const SamplerSpec & spec, const Model & model)
    : RowSampler(spec, model, all_biases(spec, model)) {}

RowSampler::RowSampler(const SamplerSpec & spec, const Model & model, std::vector<llama_logit_bias> biases)
    : n_vocab_(model.n_vocab()), chain_(make_sampler(spec, model)), rules_(spec, model, biases),
      n_likeliest_(spec.n_likeliest()), biases_(std::move(biases)), n_moved_most_(spec.n_looked_back()) {}

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
    merge_exceptions();
    fill(logits, mask);
    if (n_candidates_ == 0) {
        throw NoTokenError();
    }
    llama_token_data_array array{candidates_.data(), n_candidates_, -1, false};
    llama_sampler_apply(chain_.get(), &array);
    if (array.selected < 0 || array.selected >= (int64_t) array.size) {
        throw std::runtime_error("the sampler selected no token");
    }
    if (mask != nullptr && !std::isfinite(array.data[array.selected].logit)) {
        throw std::runtime_error("the model gives none of the tokens that the restriction allows a probability");
    }
    const llama_token token = array.data[array.selected].id;
    look_back_on(token);
    rules_.take_note(token);
    return token;
}

void RowSampler::merge_exceptions() {
    const std::vector<llama_token> & barred = rules_.barred();
    exceptions_.clear();
    auto next = biases_.begin();
    for (const llama_token token : barred) {
        while (next != biases_.end() && next->token < token) {
            exceptions_.push_back(*next++);
        }
        if (next != biases_.end() && next->token == token) {
            next++;
        }
        exceptions_.push_back({token, -INFINITY});
    }
    exceptions_.insert(exceptions_.end(), next, biases_.end());
}

// Tokens that may not be drawn are left out: to the samplers that is as if their logits were -inf, but none of them has to
// count with tokens of no probability.
void RowSampler::fill(const float * logits, const TokenMask * mask) {
    if (!rules_.allowed().empty()) {
        fill_from(rules_.allowed(), logits, mask);
    } else if (!fill_likeliest(logits, mask)) {
        if (mask == nullptr) {
            fill_from_all(logits);
        } else {
            fill_from_mask(*mask, logits);
        }
    }
}

void RowSampler::fill_from_all(const float * logits) {
    llama_token_data * out = room_for(n_vocab_);
    llama_token        id  = 0;
    const auto         write_until = [&](llama_token end) {
        for (; id < end; id++) {
            *out++ = {id, logits[id], 0.0f};
        }
    };
    for (const llama_logit_bias & exception : exceptions_) {
        write_until(exception.token);
        if (!is_ban(exception)) {
            *out++ = {id, logits[id] + exception.bias, 0.0f};
        }
        id++;
    }
    write_until(n_vocab_);
    n_candidates_ = out - candidates_.data();
}

void RowSampler::fill_from_mask(const TokenMask & mask, const float * logits) {
    CandidateWriter writer(logits, exceptions_, room_for(mask.count()));
    mask.for_each_allowed(n_vocab_, [&writer](llama_token token) {
        writer.write(token);
        return true;
    });
    n_candidates_ = writer.end() - candidates_.data();
}

void RowSampler::fill_from(const std::vector<llama_token> & ids, const float * logits, const TokenMask * mask) {
    CandidateWriter writer(logits, exceptions_, room_for(ids.size()));
    for (const llama_token id : ids) {
        if (mask == nullptr || mask->allows(id)) {
            writer.write(id);
        }
    }
    n_candidates_ = writer.end() - candidates_.data();
}

// Where so many candidates can be written. The vector never shrinks: growing it again would clear it.
llama_token_data * RowSampler::room_for(size_t n_most) {
    if (candidates_.size() < n_most) {
        candidates_.resize(n_most);
    }
    return candidates_.data();
}

// At most m logits move or are barred, so of the k + m largest at least k stay where they are: whatever is below those
// cannot be among the k likeliest. False where that is not worth it, or where two of them, or the last and the one below
// it, are equal: llama.cpp's sort says which of equal tokens comes first by where they stand among all. The likeliest token
// alone is the first of equals in both.
bool RowSampler::fill_likeliest(const float * logits, const TokenMask * mask) {
    const bool   is_one = n_likeliest_ == 1 && mask == nullptr;  // a mask may leave equals behind those that were found
    const size_t n      = (size_t) n_likeliest_ + exceptions_.size() + moved_.size() + (is_one ? 0 : 1);
    if (n_likeliest_ <= 0 || n > (size_t) std::min(n_vocab_ / n_vocab_per_candidate, most_candidates)) {
        return false;
    }
    const size_t n_found = mask == nullptr ? n : n + n_maybe_barred;
    if (mask != nullptr && mask->count() * n_found < n * (size_t) n_vocab_) {  // too few of them would be allowed
        return false;
    }
    ids_ = top_.find(logits, n_vocab_, (int32_t) n_found);
    if (mask != nullptr) {  // those that it allows of the largest are the largest of those that it allows
        mask->keep_allowed(ids_);
    }
    if (ids_.size() < n) {
        return false;
    }
    for (const llama_logit_bias & exception : exceptions_) {
        ids_.push_back(exception.token);
    }
    ids_.insert(ids_.end(), moved_.begin(), moved_.end());
    std::sort(ids_.begin(), ids_.end());
    ids_.erase(std::unique(ids_.begin(), ids_.end()), ids_.end());
    fill_from(ids_, logits, mask);
    return is_one || !has_equal_logits();
}

bool RowSampler::has_equal_logits() {
    sorted_.clear();
    for (size_t i = 0; i < n_candidates_; i++) {
        sorted_.push_back(candidates_[i].logit);
    }
    std::sort(sorted_.begin(), sorted_.end());
    return std::adjacent_find(sorted_.begin(), sorted_.end()) != sorted_.end();
}

}  // namespace llamaserve
