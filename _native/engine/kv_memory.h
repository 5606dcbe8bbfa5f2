// What the context remembers of its sequences: copy, forget, measure. Refuses what llama.cpp would abort on or silently
// get wrong. Knows nothing of samplers and steps. One thread at a time, and never while a step runs.
#pragma once

#include <cstdint>
#include <vector>

#include "context.h"
#include "llama_handles.h"
#include "model.h"

namespace llamaserve {

class KvMemory {
public:
    KvMemory(llama_context * ctx, const Model & model, const ContextOptions & options);

    // Tokens of a sequence whose state is held. This and the others throw EngineError for an id outside the table.
    int64_t length(llama_seq_id seq_id) const;

    // Add the cells of [from, to) of one sequence to another, which must end where they begin; to < 0 is the end. Metadata
    // only. Throws EngineError where llama.cpp cannot: a part of a sequence in split KV or in recurrent memory, a
    // sliding window without swa_full.
    void copy(llama_seq_id source, llama_seq_id target, llama_pos from, llama_pos to);

    // Remove the cells of [from, to); to < 0 is the end. False, and nothing changed, where the memory cannot forget just
    // that part.
    bool remove(llama_seq_id seq_id, llama_pos from, llama_pos to);

    // Whether [.., to) reaches the end of the sequence.
    bool is_tail(llama_seq_id seq_id, llama_pos to) const { return to < 0 || to >= length(seq_id); }

    // Whether the last token decoded of a sequence can be taken back at any time: not from a recurrent state.
    bool can_rewind() const { return !has_recurrent_state(); }

    // Bytes `save` would take now.
    size_t state_size(llama_seq_id seq_id) const;
    // A copy of all the context holds of a sequence; empty if llama.cpp could not write it.
    std::vector<uint8_t> save(llama_seq_id seq_id) const;
    // Put a copy made by `save` of this same context under an empty id. False where there is no room for it; the id is
    // empty then.
    bool restore(llama_seq_id seq_id, const std::vector<uint8_t> & state);

    void clear();

    // Throws EngineError for an id outside the table.
    void check_id(llama_seq_id seq_id) const;

private:
    bool has_recurrent_state() const;
    bool is_window_gone(llama_seq_id seq_id, llama_pos from) const;

    llama_context * ctx_;
    llama_memory_t memory_;
    MemoryKind     kind_;
    int32_t        n_slots_;
    int32_t        n_swa_;  // tokens of the sliding window where older cells are reused; 0 = none are
    bool           is_unified_;
};

}  // namespace llamaserve
