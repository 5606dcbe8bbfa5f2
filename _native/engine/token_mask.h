// Which tokens a row may draw, as its restriction says for one step. Immutable; any thread.
#pragma once

#include <algorithm>
#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "llama.h"

namespace llamaserve {

class TokenMask {
public:
    // Bit i % 32 of the little-endian word i / 32 says whether token i may be drawn.
    explicit TokenMask(const std::string & bytes);

    // Bytes of a mask over a vocabulary.
    static size_t size_of(int32_t n_vocab) { return ((size_t) n_vocab + bits_per_word - 1) / bits_per_word * sizeof(uint32_t); }

    size_t n_bytes() const { return n_bytes_; }

    // Whether it allows any of the first n_vocab tokens; of its right size.
    bool allows_any(int32_t n_vocab) const;

    bool allows(llama_token token) const { return (words_[token / bits_per_word] >> (token % bits_per_word) & 1u) != 0; }

    // Leaves only those that it allows, in their order.
    void keep(std::vector<llama_token> & tokens) const {
        tokens.erase(std::remove_if(tokens.begin(), tokens.end(), [this](llama_token token) { return !allows(token); }),
                     tokens.end());
    }
    void keep(std::vector<llama_token_data> & candidates) const {
        const auto is_barred = [this](const llama_token_data & candidate) { return !allows(candidate.id); };
        candidates.erase(std::remove_if(candidates.begin(), candidates.end(), is_barred), candidates.end());
    }

private:
    static constexpr int32_t bits_per_word = 32;

    size_t                n_bytes_;
    std::vector<uint32_t> words_;
};

// By sequence id.
using TokenMasks = std::map<llama_seq_id, TokenMask>;

}  // namespace llamaserve
