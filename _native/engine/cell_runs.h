// Keeps the cells of a sequence side by side. One thread at a time, between two calls of llama_decode.
//
// llama.cpp gives every token of a batch the next free cell, so sequences that decode together have theirs in turn:
// A B C A B C. Attention looks at one sequence's cells at a time, and a CPU does not fetch ahead what lies so far apart: a
// step of 8 sequences of 400 tokens took 120 ms instead of 85 (docs/adr/0008). So every few tokens what was decoded since is
// copied out, freed and put back a sequence at a time: A A A B B B C C C. Free cells are taken from the lowest on, then as
// before, so a sequence's cells keep their order unless others have left holes between them; attention rounds by the order.
#pragma once

#include <memory>
#include <vector>

#include "context.h"
#include "faults.h"
#include "kv_memory.h"
#include "kv_states.h"
#include "sequence.h"

namespace llamaserve {

// Whether gathering is wanted, possible and of use: not where cells lie in a GPU's memory, which copies would leave and come
// back to, nor without flash attention, which looks at the cells of all sequences for each.
bool gathers_cells(const KvMemory & memory, const ContextOptions & options);

class CellRuns {
public:
    // Tokens of a sequence next to each other that are as good as all of them.
    static constexpr llama_pos least_run = 8;
    // Tokens decoded beside others before they are gathered: so many are copied in one go, of every sequence.
    static constexpr llama_pos most_scattered = 32;

    CellRuns(KvMemory & memory, KvStates & states, Sequences & sequences, Faults & faults, bool is_on);

    // Whether some sequence has decoded so many tokens beside others that they should be gathered.
    bool is_due() const;
    // Gathers what all of them decoded in turn, if it is switched on. A sequence whose cells cannot be put back is cleared,
    // and broken.
    void gather();

private:
    struct Move {
        llama_seq_id                seq_id;
        std::shared_ptr<SavedState> cells;
    };

    void copy_out();
    void free_cells();
    void put_back();

    KvMemory &        memory_;
    KvStates &        states_;
    Sequences &       sequences_;
    Faults &          faults_;
    bool              is_on_;
    std::vector<Move> moves_;
};

}  // namespace llamaserve
