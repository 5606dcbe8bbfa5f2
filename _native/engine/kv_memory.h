// What the context remembers of its sequences: share, forget, measure. Refuses what llama.cpp would abort on or silently
// get wrong. Knows nothing of samplers and steps. One thread at a time, and never while a step runs.
//
// Ids: 0 to n_slots - 1 decode. Memory that can share has more of them, for what no slot has, and one that nobody sees:
// copies are made through it (kv_states.h). llama.cpp writes copies only of ids that may decode, so it stands right behind
// the slots, and ids from n_slots on are one more in llama.cpp than here.
#pragma once

#include <cstdint>

#include "context.h"
#include "llama_handles.h"
#include "model.h"

namespace llamaserve {

class KvMemory {
public:
    KvMemory(llama_context * ctx, const Model & model, const ContextOptions & options);

    // Whether any part of a sequence can be held by several ids, by metadata alone.
    bool can_share() const { return can_share_; }
    // Whether what follows a token can be forgotten at any time, while the rest stays.
    bool can_trim() const { return kind_ == MemoryKind::kv || can_share_; }
    // Whether the last token decoded of a sequence can be taken back at any time: not from a recurrent state.
    bool can_rewind() const { return kind_ != MemoryKind::recurrent && kind_ != MemoryKind::hybrid; }

    MemoryKind kind() const { return kind_; }
    // Tokens of the sliding window; 0 = there is none.
    int32_t n_swa() const { return n_swa_; }

    // Ids there are. The others throw EngineError for one outside.
    int32_t n_ids() const;
    void    check_id(llama_seq_id seq_id) const;

    // Tokens an id holds.
    int64_t length(llama_seq_id seq_id) const;

    // Have `seq_id` go on with the cells of `source`, up to its first n_tokens. Throws EngineError, and changes nothing,
    // where memory cannot share, both are the same, `seq_id` holds as many, the source has fewer or lost its window.
    void adopt(llama_seq_id seq_id, llama_seq_id source, llama_pos n_tokens);

    // Forget all but the first n_tokens of an id. False, and nothing changed, where memory cannot forget just that.
    bool trim(llama_seq_id seq_id, llama_pos n_tokens);

    // Whether the cells of all layers are there from a position on.
    bool is_whole_from(llama_seq_id seq_id, llama_pos start) const;

    // Cells in use, each counted once; tokens held where there are no cells.
    int64_t used_cells() const;
    // In how many runs of cells next to each other an id lies; 0 where there are no cells.
    int64_t n_runs(llama_seq_id seq_id) const;

    void clear();

    // --- for copies ---
    llama_memory_t get() const { return memory_; }
    // What llama.cpp calls an id.
    llama_seq_id llama_id(llama_seq_id seq_id) const { return seq_id + (can_share_ && seq_id >= n_slots_ ? 1 : 0); }
    // llama.cpp's id of the sequence that nobody sees; it exists where memory can share.
    llama_seq_id scratch_id() const { return n_slots_; }

private:
    bool is_window_gone(llama_seq_id seq_id, llama_pos n_tokens) const;
    void check_can_adopt(llama_seq_id seq_id, llama_seq_id source, llama_pos n_tokens) const;

    llama_memory_t memory_;
    MemoryKind     kind_;
    int32_t        n_slots_;
    int32_t        n_swa_;
    bool           can_share_;
};

}  // namespace llamaserve
