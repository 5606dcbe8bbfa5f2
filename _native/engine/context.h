// Sizes of a llama_context: checked before llama.cpp sees them, because it aborts the process on some.
#pragma once

#include <cstdint>

#include "llama_handles.h"
#include "model.h"

namespace llamaserve {

struct ContextOptions {
    int64_t               n_ctx           = 8192;  // over all sequences
    int32_t               n_slots         = 4;
    int32_t               n_batch         = 2048;
    int32_t               n_ubatch        = 512;
    int32_t               n_threads       = 1;
    int32_t               n_threads_batch = 1;
    llama_flash_attn_type flash_attention = LLAMA_FLASH_ATTN_TYPE_AUTO;
    bool                  kv_unified      = true;
    bool                  swa_full        = false;
    bool                  gathers_cells   = false;  // cells of running sequences are put side by side
};

// What n_ctx becomes: llama.cpp rounds it up, in split KV for every sequence.
int64_t rounded_n_ctx(const ContextOptions & options);

// Whether a context has a sequence more than there are slots, for copies of parts of sequences: where the memory that
// llama.cpp makes of this can share, and one of its ids is left.
bool has_scratch_sequence(const Model & model, const ContextOptions & options);

// Sequences of a context.
int32_t count_sequences(const Model & model, const ContextOptions & options);

// Tokens of one call whose logits the context holds at once: one for every sequence, and enough that scoring a prompt
// token by token is not slow. Each takes as many floats as the vocabulary has tokens, in a buffer and in the graph.
int32_t n_outputs_max(const Model & model, const ContextOptions & options);

// Throws ModelLoadError when the sizes cannot work or llama.cpp refuses them.
ContextHandle make_context(Model & model, const ContextOptions & options);

// Bytes of host memory a further token of n_ctx costs, measured on two small contexts; 0 where it does not grow.
int64_t context_bytes_per_token(Model & model, const ContextOptions & options);

}  // namespace llamaserve
