#include "kv_cells.h"

#include "llama-kv-cache-iswa.h"
#include "llama-kv-cache.h"

namespace llamaserve {
namespace {

int64_t used_cells_of(const llama_kv_cache & cache) {
    int64_t used = 0;
    for (uint32_t stream = 0; stream < cache.get_n_stream(); stream++) {  // of more than one, stream i belongs to id i
        used += cache.get_cells((llama_seq_id) stream).get_used();
    }
    return used;
}

const llama_kv_cache * cells_of(llama_memory_t memory) {
    if (const auto * windowed = dynamic_cast<const llama_kv_cache_iswa *>(memory)) {
        return windowed->get_base();
    }
    return dynamic_cast<const llama_kv_cache *>(memory);
}

}  // namespace

std::optional<int64_t> count_used_cells(llama_memory_t memory) {
    const llama_kv_cache * cache = cells_of(memory);
    return cache == nullptr ? std::nullopt : std::optional(used_cells_of(*cache));
}

std::optional<int64_t> count_runs(llama_memory_t memory, llama_seq_id seq_id) {
    const llama_kv_cache * cache = cells_of(memory);
    if (cache == nullptr) {
        return std::nullopt;
    }
    const llama_kv_cells & cells = cache->get_cells(seq_id);
    int64_t n_runs = 0;
    bool    is_in_run = false;
    for (uint32_t i = 0; i < cells.size(); i++) {
        const bool is_its_own = !cells.is_empty(i) && cells.seq_has(i, seq_id);
        n_runs += is_its_own && !is_in_run;
        is_in_run = is_its_own;
    }
    return n_runs;
}

}  // namespace llamaserve
