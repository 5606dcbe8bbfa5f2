// What the engine keeps of a sequence beside its cells.
#pragma once

#include <algorithm>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "row_sampler.h"

namespace llamaserve {

struct Sequence {
    std::unique_ptr<RowSampler> sampler;
    llama_pos                   n_past = 0;       // tokens in memory that the caller knows of
    llama_pos                   n_gathered = 0;   // of these, the first whose cells lie well, or are shared
    std::optional<llama_token>  drawn;            // the last token drawn, not in memory yet
    llama_pos                   n_recompute = 0;  // a resumed sequence without its cells: tokens it had, to be fed again
    std::vector<llama_token>    stop_tokens;      // tokens that end its text as those of the model do
    int32_t                     n_top = -1;       // likeliest tokens to tell of with each drawn; -1 = not even of itself
    std::string                 broken;           // why it can only be closed; empty = it is fine

    bool stops_at(llama_token token) const {
        return std::find(stop_tokens.begin(), stop_tokens.end(), token) != stop_tokens.end();
    }

    // Tokens it alone holds whose cells lie between those of others.
    llama_pos n_scattered() const { return n_past - n_gathered; }

    // Nothing of it is in memory any more.
    void forget() {
        n_past = n_gathered = 0;
        drawn.reset();
    }

    // Whether the tokens it is fed are some that it had before: nothing is drawn after them.
    bool is_recomputing() const { return n_past < n_recompute; }
};

// By sequence id; null = not open.
using Sequences = std::vector<std::unique_ptr<Sequence>>;

}  // namespace llamaserve
