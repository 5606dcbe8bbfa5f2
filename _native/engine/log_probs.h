// How likely tokens are: natural logarithms of the softmax of a row of logits.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "llama.h"
#include "top_logits.h"

namespace llamaserve {

struct TokenProb {
    llama_token token;
    float       logprob;  // 0 or less, at least LogProbs::least; NaN for the first of a text, which nothing comes before
    std::string piece;    // bytes of the token, control tokens written out; filled in by who knows the vocabulary
};

struct TokenScore {
    TokenProb              chosen{-1, 0.0f, {}};
    std::vector<TokenProb> top;  // the likeliest in falling order, of equal ones the lowest id first
};

// One row of logits; reads all of them once, and again in find_top.
class LogProbs {
public:
    static constexpr float least = -9999.0f;  // stands for 0, which has no logarithm, and for logits that are no numbers

    LogProbs(const float * logits, int32_t n_vocab);

    TokenScore score(llama_token token, int32_t n_top) const;

private:
    float logprob(llama_token token) const;

    const float * logits_;
    int32_t       n_vocab_;
    float         max_;
    float         log_sum_;  // of the exponentials of logits less max
};

}  // namespace llamaserve
