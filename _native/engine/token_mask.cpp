#include "token_mask.h"

namespace llamaserve {

TokenMask::TokenMask(const std::string & bytes)
    : n_bytes_(bytes.size()), words_((bytes.size() + sizeof(uint32_t) - 1) / sizeof(uint32_t)) {
    for (size_t i = 0; i < bytes.size(); i++) {
        words_[i / sizeof(uint32_t)] |= (uint32_t) (uint8_t) bytes[i] << (i % sizeof(uint32_t) * 8);
    }
}

bool TokenMask::allows_any(int32_t n_vocab) const {
    const int32_t n_whole = n_vocab / bits_per_word;
    const int32_t n_rest  = n_vocab % bits_per_word;
    for (int32_t i = 0; i < n_whole; i++) {
        if (words_[i] != 0) {
            return true;
        }
    }
    return n_rest > 0 && (words_[n_whole] & ((1u << n_rest) - 1)) != 0;
}

}  // namespace llamaserve
