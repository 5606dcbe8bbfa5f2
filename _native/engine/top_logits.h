// Finds the largest logits of a row without sorting it.
#pragma once

#include <cstdint>
#include <vector>

#include "llama.h"

namespace llamaserve {

// Scratch space of one row's search; keeps its room.
class TopLogits {
public:
    // The ids of the n largest logits, of equal ones those with the lowest ids, in ascending order of id. Fewer than n if
    // the row has fewer numbers (NaN is none). Valid until the next call.
    const std::vector<llama_token> & find(const float * logits, int32_t n_vocab, int32_t n);

private:
    std::vector<float>       block_max_;
    std::vector<float>       sorted_max_;
    std::vector<llama_token> ids_;
};

}  // namespace llamaserve
