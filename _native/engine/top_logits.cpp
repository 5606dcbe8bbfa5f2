#include "top_logits.h"

#include <algorithm>
#include <cmath>
#include <functional>

namespace llamaserve {
namespace {

constexpr int32_t n_blocks_wanted = 1024;

// The largest of a block; NaN is passed over.
float max_of(const float * values, int32_t n) {
    float max = -INFINITY;
#pragma omp simd reduction(max : max)
    for (int32_t i = 0; i < n; i++) {
        max = values[i] > max ? values[i] : max;
    }
    return max;
}

}  // namespace

// Every one of the n largest lies in a block whose maximum is at least the n-th largest maximum, and is at least that
// itself: n maxima are. So one pass takes the maxima, and only some blocks are looked at again.
const std::vector<llama_token> & TopLogits::find(const float * logits, int32_t n_vocab, int32_t n) {
    ids_.clear();
    const int32_t block    = std::max<int32_t>(16, n_vocab / n_blocks_wanted);
    const int32_t n_blocks = (n_vocab + block - 1) / block;
    block_max_.resize(n_blocks);
    for (int32_t i = 0; i < n_blocks; i++) {
        block_max_[i] = max_of(logits + (int64_t) i * block, std::min(block, n_vocab - i * block));
    }
    float threshold = -INFINITY;
    if (n < n_blocks) {
        sorted_max_ = block_max_;
        std::nth_element(sorted_max_.begin(), sorted_max_.begin() + (n - 1), sorted_max_.end(), std::greater<float>());
        threshold = sorted_max_[n - 1];
    }
    for (int32_t i = 0; i < n_blocks; i++) {
        if (block_max_[i] < threshold) {
            continue;
        }
        const int32_t end = std::min(n_vocab, (i + 1) * block);
        for (int32_t id = i * block; id < end; id++) {
            if (logits[id] >= threshold) {
                ids_.push_back(id);
            }
        }
    }
    if ((int32_t) ids_.size() > n) {
        const auto is_before = [logits](llama_token a, llama_token b) {
            return logits[a] > logits[b] || (logits[a] == logits[b] && a < b);
        };
        std::nth_element(ids_.begin(), ids_.begin() + n, ids_.end(), is_before);
        ids_.resize(n);
        std::sort(ids_.begin(), ids_.end());
    }
    return ids_;
}

}  // namespace llamaserve
