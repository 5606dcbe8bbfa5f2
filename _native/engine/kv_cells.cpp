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

}  // namespace

std::optional<int64_t> count_used_cells(llama_memory_t memory) {
    if (const auto * plain = dynamic_cast<const llama_kv_cache *>(memory)) {
        return used_cells_of(*plain);
    }
    if (const auto * windowed = dynamic_cast<const llama_kv_cache_iswa *>(memory)) {
        return used_cells_of(*windowed->get_base());
    }
    return std::nullopt;
}

}  // namespace llamaserve
