#include "kv_memory.h"

#include <algorithm>
#include <string>

#include "error.h"

namespace llamaserve {

KvMemory::KvMemory(llama_context * ctx, const Model & model, const ContextOptions & options)
    : ctx_(ctx), memory_(llama_get_memory(ctx)), kind_(model.memory()), n_slots_(options.n_slots),
      n_swa_(options.swa_full ? 0 : llama_model_n_swa(model.get())), is_unified_(options.kv_unified) {}

bool KvMemory::has_recurrent_state() const { return kind_ == MemoryKind::recurrent || kind_ == MemoryKind::hybrid; }

void KvMemory::check_id(llama_seq_id seq_id) const {
    // Unified KV keeps books for every id llama.cpp knows; split KV and recurrent states only for those that decode.
    const int64_t limit =
        is_unified_ && !has_recurrent_state() ? (int64_t) llama_max_parallel_sequences() : n_slots_;
    if (seq_id < 0 || seq_id >= limit) {
        throw EngineError("sequence id " + std::to_string(seq_id) + " is outside 0.." + std::to_string(limit - 1));
    }
}

int64_t KvMemory::length(llama_seq_id seq_id) const {
    check_id(seq_id);
    return (int64_t) llama_memory_seq_pos_max(memory_, seq_id) + 1;
}

void KvMemory::copy(llama_seq_id source, llama_seq_id target, llama_pos from, llama_pos to) {
    check_id(source);
    const int64_t target_length = length(target);
    const bool    is_whole      = from <= 0 && is_tail(source, to);
    if (source == target) {
        throw EngineError("sequence " + std::to_string(source) + " cannot be copied onto itself");
    }
    if (!is_whole && (has_recurrent_state() || !is_unified_)) {
        throw EngineError("only a whole sequence can be copied in split KV or recurrent memory");
    }
    if (n_swa_ > 0) {
        // A cell with two owners is never reused: the window's cache would run dry.
        throw EngineError("a sliding window without swa_full cannot be shared");
    }
    if (target_length != std::max<llama_pos>(from, 0)) {
        throw EngineError("sequence " + std::to_string(target) + " holds " + std::to_string(target_length) +
                          " tokens: a copy must go on where it ends");
    }
    llama_memory_seq_cp(memory_, source, target, is_whole ? -1 : from, is_whole ? -1 : to);
}

// llama.cpp says yes to a trim although the window before `from` is gone, and computes garbage afterwards.
bool KvMemory::is_window_gone(llama_seq_id seq_id, llama_pos from) const {
    // The token at `from` sees those from `from - n_swa + 1` on: is_masked_swa in llama-hparams.h.
    return n_swa_ > 0 && from > 0 && llama_memory_seq_pos_min(memory_, seq_id) > std::max(0, from - n_swa_ + 1);
}

bool KvMemory::remove(llama_seq_id seq_id, llama_pos from, llama_pos to) {
    if (from >= length(seq_id)) {
        return true;
    }
    if (is_tail(seq_id, to)) {
        return !is_window_gone(seq_id, from) && llama_memory_seq_rm(memory_, seq_id, from, -1);
    }
    return llama_memory_seq_rm(memory_, seq_id, from, to);
}

size_t KvMemory::state_size(llama_seq_id seq_id) const {
    check_id(seq_id);
    return llama_state_seq_get_size_ext(ctx_, seq_id, 0);
}

std::vector<uint8_t> KvMemory::save(llama_seq_id seq_id) const {
    std::vector<uint8_t> state(state_size(seq_id));
    state.resize(llama_state_seq_get_data_ext(ctx_, state.data(), state.size(), seq_id, 0));
    return state;
}

bool KvMemory::restore(llama_seq_id seq_id, const std::vector<uint8_t> & state) {
    check_id(seq_id);
    return llama_state_seq_set_data_ext(ctx_, state.data(), state.size(), seq_id, 0) == state.size();
}

void KvMemory::clear() { llama_memory_clear(memory_, true); }

}  // namespace llamaserve
