#include "suspended.h"

#include <algorithm>

#include "engine.h"
#include "error.h"

namespace llamaserve {

std::shared_ptr<SuspendedSequence> Engine::suspend(llama_seq_id seq_id, size_t max_bytes) {
    settle();
    check_up();
    if (!is_open(seq_id)) {
        throw EngineError("sequence " + std::to_string(seq_id) + " is not open");
    }
    Sequence & sequence = *sequences_[seq_id];
    if (!sequence.broken.empty()) {
        throw EngineError("sequence " + std::to_string(seq_id) + " can only be closed: " + sequence.broken);
    }
    if (!sequence.drawn) {
        throw EngineError("sequence " + std::to_string(seq_id) + " has drawn no token: close it and start again");
    }
    auto suspended = std::make_shared<SuspendedSequence>();
    if (!sequence.is_recomputing()) {
        suspended->state = states_->save(seq_id, 0, max_bytes);
    }
    sequence.n_recompute = suspended->state == nullptr ? std::max(sequence.n_past, sequence.n_recompute) : 0;
    suspended->sequence  = std::move(sequence);
    close(seq_id);
    return suspended;
}

bool Engine::resume(llama_seq_id seq_id, SuspendedSequence & suspended) {
    settle();
    check_up();
    check_slot_is_free(seq_id);
    if (suspended.sequence.sampler == nullptr) {
        throw EngineError("a suspended sequence can be resumed once");
    }
    const bool    has_state = suspended.state != nullptr;
    const int64_t n_held    = memory_->length(seq_id);
    if (n_held > (has_state ? 0 : suspended.sequence.n_recompute)) {
        throw EngineError("sequence " + std::to_string(seq_id) + " holds " + std::to_string(n_held) +
                          " tokens, which the suspended one cannot go on from");
    }
    if (has_state && !states_->restore(seq_id, *suspended.state)) {
        return false;
    }
    auto sequence    = std::make_unique<Sequence>(std::move(suspended.sequence));
    sequence->n_past = sequence->n_gathered = (llama_pos) memory_->length(seq_id);
    suspended.state.reset();
    sequences_[seq_id] = std::move(sequence);
    used_cells_        = count_cells();
    return true;
}

}  // namespace llamaserve
