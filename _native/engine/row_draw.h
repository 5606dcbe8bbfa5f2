// What becomes of logits: a token is drawn from them, or one that is known is scored; the rows of a step in parallel.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "log_probs.h"
#include "row_sampler.h"
#include "step.h"
#include "token_mask.h"

namespace llamaserve {

struct RowDraw {
    size_t            row;      // of the step
    const float *     logits;
    RowSampler *      sampler;  // null = nothing is drawn
    const TokenMask * mask;     // what may be drawn; null = any token
    llama_token       token;    // the one drawn, or the one to score
    int32_t           n_top;    // likeliest tokens to tell of beside it; -1 = there is no score

    // What came of it.
    TokenScore  score{};  // without the bytes of tokens
    RowError    error = RowError::none;
    std::string message{};
};

// Does them all; none touches another's sampler. Does not throw: one that fails says so.
void compute_draws(std::vector<RowDraw> & draws, int32_t n_vocab, int32_t n_threads);

}  // namespace llamaserve
