// Which tokens a row may draw, as its restriction says for one step. Immutable; any thread.
#pragma once

#include <algorithm>
#include <cstdint>
#include <map>
#include <string_view>
#include <vector>

#include "llama.h"

namespace llamaserve {

class TokenMask {
public:
    // Bit i % 32 of the little-endian word i / 32 says whether token i may be drawn.
    explicit TokenMask(std::string_view bytes);

    // Bytes of a mask over a vocabulary.
    static size_t size_of(int32_t n_vocab) { return ((size_t) n_vocab + bits_per_word - 1) / bits_per_word * sizeof(uint32_t); }

    size_t n_bytes() const { return n_bytes_; }

    // --- of its right size for the vocabulary ---

    bool allows(llama_token token) const { return (words_[token / bits_per_word] >> (token % bits_per_word) & 1u) != 0; }

    // Hands those of the first n_vocab tokens that it allows to `take`, in ascending order, while that says true; whether
    // it had all.
    template <typename Take> bool for_each_allowed(int32_t n_vocab, const Take & take) const {
        for (int32_t first = 0; first < n_vocab; first += bits_per_word) {
            uint32_t word = words_[first / bits_per_word];
            if (n_vocab - first < bits_per_word) {
                word &= (1u << (n_vocab - first)) - 1;
            }
            for (; word != 0; word &= word - 1) {
                if (!take((llama_token) (first + __builtin_ctz(word)))) {
                    return false;
                }
            }
        }
        return true;
    }

    // Whether it allows any of them.
    bool allows_any(int32_t n_vocab) const {
        return !for_each_allowed(n_vocab, [](llama_token) { return false; });
    }

    // How many tokens it allows; bits behind the vocabulary count too.
    size_t count() const;

    // Leaves only those that it allows, in their order.
    void keep_allowed(std::vector<llama_token> & tokens) const {
        tokens.erase(std::remove_if(tokens.begin(), tokens.end(), [this](llama_token token) { return !allows(token); }),
                     tokens.end());
    }

private:
    static constexpr int32_t bits_per_word = 32;

    size_t                n_bytes_;
    std::vector<uint32_t> words_;
};

// By sequence id.
using TokenMasks = std::map<llama_seq_id, TokenMask>;

}  // namespace llamaserve
