#include "kv_memory.h"

#include <algorithm>
#include <string>

#include "error.h"
#include "kv_cells.h"

namespace llamaserve {

KvMemory::KvMemory(llama_context * ctx, const Model & model, const ContextOptions & options)
    : memory_(llama_get_memory(ctx)), kind_(model.memory()), n_slots_(options.n_slots),
      n_swa_(llama_model_n_swa(model.get())),
      can_share_(has_scratch_sequence(model, options) && count_used_cells(memory_).has_value()) {}

int32_t KvMemory::n_ids() const { return can_share_ ? (int32_t) llama_max_parallel_sequences() - 1 : n_slots_; }

void KvMemory::check_id(llama_seq_id seq_id) const {
    if (seq_id < 0 || seq_id >= n_ids()) {
        throw EngineError("sequence id " + std::to_string(seq_id) + " is outside 0.." + std::to_string(n_ids() - 1));
    }
}

int64_t KvMemory::length(llama_seq_id seq_id) const {
    check_id(seq_id);
    return (int64_t) llama_memory_seq_pos_max(memory_, llama_id(seq_id)) + 1;
}

// --- share ---

void KvMemory::adopt(llama_seq_id seq_id, llama_seq_id source, llama_pos n_tokens) {
    check_can_adopt(seq_id, source, n_tokens);
    llama_memory_seq_cp(memory_, llama_id(source), llama_id(seq_id), (llama_pos) length(seq_id), n_tokens);
}

void KvMemory::check_can_adopt(llama_seq_id seq_id, llama_seq_id source, llama_pos n_tokens) const {
    const int64_t n_held   = length(seq_id);
    const int64_t n_source = length(source);
    if (!can_share_) {
        throw EngineError("this memory cannot share: split KV, a recurrent state or a sliding window without swa_full");
    }
    if (seq_id == source) {
        throw EngineError("sequence " + std::to_string(seq_id) + " cannot adopt from itself");
    }
    if (n_tokens <= n_held || n_tokens > n_source) {
        throw EngineError("sequence " + std::to_string(seq_id) + ", which holds " + std::to_string(n_held) +
                          " tokens, cannot hold the first " + std::to_string(n_tokens) + " of the " +
                          std::to_string(n_source) + " of sequence " + std::to_string(source));
    }
    // Without a hole where it goes on, and with the window of the next token.
    const bool is_gone = n_held > 0 ? !is_whole_from(source, (llama_pos) n_held) || is_window_gone(seq_id, n_tokens)
                                    : is_window_gone(source, n_tokens);
    if (is_gone) {
        throw EngineError("the sliding window before token " + std::to_string(n_tokens) + " of sequence " +
                          std::to_string(source) + " is gone");
    }
}

// --- forget ---

bool KvMemory::is_whole_from(llama_seq_id seq_id, llama_pos start) const {
    return n_swa_ == 0 || llama_memory_seq_pos_min(memory_, llama_id(seq_id)) <= start;
}

// llama.cpp reuses cells that have left the window, also of a cache that has room for all (swa_full); then it says yes to
// a trim and computes garbage afterwards. The token behind the first n sees those from n - n_swa + 1 on: is_masked_swa in
// llama-hparams.h.
bool KvMemory::is_window_gone(llama_seq_id seq_id, llama_pos n_tokens) const {
    return n_tokens > 0 && !is_whole_from(seq_id, std::max(0, n_tokens - n_swa_ + 1));
}

bool KvMemory::trim(llama_seq_id seq_id, llama_pos n_tokens) {
    if (n_tokens > 0 && n_tokens >= length(seq_id)) {
        return true;
    }
    if (is_window_gone(seq_id, n_tokens)) {
        return false;
    }
    return llama_memory_seq_rm(memory_, llama_id(seq_id), n_tokens, -1);
}

void KvMemory::clear() { llama_memory_clear(memory_, true); }

// --- measure ---

int64_t KvMemory::used_cells() const {
    if (const auto used = count_used_cells(memory_)) {
        return *used;
    }
    int64_t n_tokens = 0;
    for (llama_seq_id seq_id = 0; seq_id < n_ids(); seq_id++) {
        n_tokens += length(seq_id);
    }
    return n_tokens;
}

int64_t KvMemory::n_runs(llama_seq_id seq_id) const {
    check_id(seq_id);
    return count_runs(memory_, llama_id(seq_id)).value_or(0);
}

}  // namespace llamaserve
