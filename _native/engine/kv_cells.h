// How many cells of the KV cache are in use, which llama.h does not say: it knows lengths of sequences, and a cell that
// several of them hold counts in each.
//
// Reads llama.cpp's own classes. They are no stable interface, but llama.cpp is built from the same source as this file,
// so a change there does not compile here; nothing else of them is used anywhere.
#pragma once

#include <cstdint>
#include <optional>

#include "llama.h"

namespace llamaserve {

// Cells in use, each counted once; for a sliding window those of the layers that see everything. Nothing for a memory
// that is not made of such cells (recurrent, hybrid, the caches of sparse attention). O(streams).
std::optional<int64_t> count_used_cells(llama_memory_t memory);

// In how many runs of cells next to each other a sequence lies; nothing for memory without cells.
std::optional<int64_t> count_runs(llama_memory_t memory, llama_seq_id seq_id);

}  // namespace llamaserve
