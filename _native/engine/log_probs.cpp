#include "log_probs.h"

#include <algorithm>
#include <cmath>
#include <cstring>

namespace llamaserve {
namespace {

constexpr int32_t block = 1024;  // exponentials added up as floats before the sum goes on as a double

// e to the x for x from -87 to 0, to 2 units of the last place, in steps a compiler makes vector code of: 2 to the n by
// its exponent, times 2 to the f, -0.5 <= f <= 0.5, by a polynomial. What is below counts as -87, and so does NaN.
inline float exp_below_zero(float x) {
    const float   clamped = x > -87.0f ? x : -87.0f;
    const float   scaled  = clamped * 1.44269504f;
    const int32_t n       = (int32_t) (scaled - 0.5f);
    const float   f       = (clamped - (float) n * 0.693145752f) - (float) n * 1.42860677e-6f;
    float         p       = 1.0f / 5040.0f;
    p                     = p * f + 1.0f / 720.0f;
    p                     = p * f + 1.0f / 120.0f;
    p                     = p * f + 1.0f / 24.0f;
    p                     = p * f + 1.0f / 6.0f;
    p                     = p * f + 0.5f;
    p                     = p * f + 1.0f;
    p                     = p * f + 1.0f;
    const int32_t bits    = (n + 127) << 23;
    float         power;
    std::memcpy(&power, &bits, sizeof(power));
    return p * power;
}

float max_of(const float * values, int32_t n) {
    float max = -INFINITY;
#pragma omp simd reduction(max : max)
    for (int32_t i = 0; i < n; i++) {
        max = values[i] > max ? values[i] : max;
    }
    return max;
}

float sum_of_exponentials(const float * values, int32_t n, float max) {
    float sum = 0.0f;
#pragma omp simd reduction(+ : sum)
    for (int32_t i = 0; i < n; i++) {
        sum += exp_below_zero(values[i] - max);
    }
    return sum;
}

}  // namespace

LogProbs::LogProbs(const float * logits, int32_t n_vocab)
    : logits_(logits), n_vocab_(n_vocab), max_(max_of(logits, n_vocab)) {
    double sum = 0.0;
    for (int32_t start = 0; start < n_vocab; start += block) {
        sum += sum_of_exponentials(logits + start, std::min(block, n_vocab - start), max_);
    }
    log_sum_ = (float) std::log(sum);
}

float LogProbs::logprob(llama_token token) const {
    const float value = logits_[token] - max_ - log_sum_;
    return value > least ? std::min(value, 0.0f) : least;
}

TokenScore LogProbs::score(llama_token token, int32_t n_top) const {
    TokenScore score;
    score.chosen = {token, logprob(token), {}};
    if (n_top > 0) {
        TopLogits top;
        for (const llama_token id : top.find(logits_, n_vocab_, std::min(n_top, n_vocab_))) {
            score.top.push_back({id, logprob(id), {}});
        }
        // By logits: logarithms that were cut off are equal. The ids ascend, and a stable sort leaves them so.
        std::stable_sort(score.top.begin(), score.top.end(), [this](const TokenProb & a, const TokenProb & b) {
            return logits_[a.token] > logits_[b.token];
        });
    }
    return score;
}

}  // namespace llamaserve
