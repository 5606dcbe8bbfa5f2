// Copies of what a KvMemory holds: made, put back, and checked for what llama.cpp would abort on. One thread at a time, and
// never while a step runs.
//
// llama.cpp copies whole sequences. Where memory can share, the part that is wanted becomes a sequence of its own for the
// moment of the copy; and because llama.cpp leaves out what the end of a sequence does not see, a sliding window is copied
// in blocks of which every token sees every other. Such a copy is a row of blocks, each after its length (8 bytes). Of
// other memory a copy is what llama.cpp writes.
#pragma once

#include <memory>
#include <string>

#include "kv_memory.h"
#include "saved_state.h"

namespace llamaserve {

class KvStates {
public:
    KvStates(llama_context * ctx, KvMemory & memory, const ContextOptions & options);

    // What a copy depends on beside the model.
    const std::string & layout() const { return layout_; }

    // A copy of what an id holds from `start` on. Null where it takes more than max_bytes, there is no memory for it or a
    // part of the window is gone. Throws EngineError for a position that it does not hold, and for one above 0 where memory
    // cannot share.
    std::shared_ptr<SavedState> save(llama_seq_id seq_id, llama_pos start, size_t max_bytes);
    // Put a copy behind the first `state.start` tokens, which must be all the id holds. False where there is no room; it
    // holds as many as before then.
    bool restore(llama_seq_id seq_id, const SavedState & state);

    // A copy of what a trim cannot bring back, so that `go_back` can; null where it takes more than max_bytes, there is no
    // memory for it or every trim is possible. Throws EngineError for an id that holds nothing.
    std::shared_ptr<SavedState> checkpoint(llama_seq_id seq_id, size_t max_bytes);
    // Have an id that has gone on since hold what it held then. False where that fails: it holds nothing then.
    bool go_back(llama_seq_id seq_id, const SavedState & state);

private:
    llama_pos block_end(llama_pos from, llama_pos end) const;
    bool      restore_blocks(llama_seq_id seq_id, const SavedState & state);
    void      check_restorable(llama_seq_id seq_id, const SavedState & state) const;

    std::shared_ptr<SavedState> save_blocks(llama_seq_id seq_id, llama_pos start, llama_pos end, size_t max_bytes);
    std::shared_ptr<SavedState> save_whole(llama_seq_id seq_id, llama_pos end, size_t max_bytes,
                                           llama_state_seq_flags flags);

    llama_context * ctx_;
    KvMemory &      memory_;
    std::string     layout_;
};

}  // namespace llamaserve
