#include "token_mask.h"

#include <cstring>

#if __BYTE_ORDER__ != __ORDER_LITTLE_ENDIAN__
#error "a mask is copied as it comes: its words are little-endian"
#endif

namespace llamaserve {

TokenMask::TokenMask(std::string_view bytes)
    : n_bytes_(bytes.size()), words_((bytes.size() + sizeof(uint32_t) - 1) / sizeof(uint32_t)) {
    if (!bytes.empty()) {
        std::memcpy(words_.data(), bytes.data(), bytes.size());
    }
}

// Bits are added up in pairs, fours and bytes: steps that a compiler makes vector code of.
size_t TokenMask::count() const {
    size_t n_bits = 0;
    for (uint32_t word : words_) {
        word = word - (word >> 1 & 0x55555555u);
        word = (word & 0x33333333u) + (word >> 2 & 0x33333333u);
        word = (word + (word >> 4)) & 0x0F0F0F0Fu;
        n_bits += word * 0x01010101u >> 24;
    }
    return n_bits;
}

}  // namespace llamaserve
