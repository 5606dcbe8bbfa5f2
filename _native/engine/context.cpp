#include "context.h"

#include <algorithm>
#include <string>
#include <utility>

#include "error.h"
#include "llama-ext.h"
#include "llama_log.h"

namespace llamaserve {
namespace {

constexpr int32_t n_scored_at_once = 32;

constexpr int64_t n_ctx_step = 256;  // llama.cpp rounds contexts up to this (GGML_PAD in llama-context.cpp)

int64_t round_up(int64_t n, int64_t step) { return (n + step - 1) / step * step; }

void check_sizes(const ContextOptions & options) {
    const int64_t max_sequences = (int64_t) llama_max_parallel_sequences();
    if (options.n_slots < 1 || options.n_slots > max_sequences) {
        throw ModelLoadError("n_slots is " + std::to_string(options.n_slots) + ": it must be from 1 to " +
                             std::to_string(max_sequences));
    }
    if (options.n_ctx < 1 || options.n_ctx > INT32_MAX || rounded_n_ctx(options) > INT32_MAX) {
        throw ModelLoadError("n_ctx is " + std::to_string(options.n_ctx) + ": it must be from 1 to " +
                             std::to_string(INT32_MAX - n_ctx_step * max_sequences));
    }
    if (options.n_batch < options.n_slots) {
        throw ModelLoadError("n_batch is " + std::to_string(options.n_batch) + ": it must be at least n_slots, " +
                             std::to_string(options.n_slots));
    }
    const std::pair<const char *, int32_t> counts[] = {{"n_ubatch", options.n_ubatch},
                                                       {"n_threads", options.n_threads},
                                                       {"n_threads_batch", options.n_threads_batch}};
    for (const auto & [name, value] : counts) {
        if (value < 1) {
            throw ModelLoadError(std::string(name) + " is " + std::to_string(value) + ": it must be at least 1");
        }
    }
}

int64_t context_bytes(Model & model, ContextOptions options, int64_t n_ctx) {
    options.n_ctx = n_ctx;
    options.n_slots = 1;  // a token costs the same in every sequence
    options.n_batch = options.n_ubatch = 32;
    const ContextHandle ctx = make_context(model, options);
    int64_t bytes = 0;
    for (const auto & [buffer_type, data] : llama_get_memory_breakdown(ctx.get())) {
        bytes += ggml_backend_buft_is_host(buffer_type) ? (int64_t) data.context : 0;
    }
    return bytes;
}

}  // namespace

// llama.cpp would clamp n_batch by the unrounded value, so it is rounded first.
int64_t rounded_n_ctx(const ContextOptions & options) {
    if (options.kv_unified) {
        return round_up(options.n_ctx, n_ctx_step);
    }
    return round_up((options.n_ctx + options.n_slots - 1) / options.n_slots, n_ctx_step) * options.n_slots;
}

// A cell of a window with two owners is never reused: a cache that holds no more than the windows would run dry.
bool has_scratch_sequence(const Model & model, const ContextOptions & options) {
    const MemoryKind kind = model.memory();
    const bool can_share  = kind == MemoryKind::kv || (kind == MemoryKind::sliding_window && options.swa_full);
    return options.kv_unified && can_share && options.n_slots < (int64_t) llama_max_parallel_sequences();
}

int32_t count_sequences(const Model & model, const ContextOptions & options) {
    return options.n_slots + (has_scratch_sequence(model, options) ? 1 : 0);
}

int32_t n_outputs_max(const Model & model, const ContextOptions & options) {
    return std::max(count_sequences(model, options), std::min(n_scored_at_once, options.n_batch));
}

ContextHandle make_context(Model & model, const ContextOptions & options) {
    if (!model.has_weights()) {
        throw ModelLoadError("the model was only inspected: without its weights it cannot have a context");
    }
    check_sizes(options);
    const int64_t  n_ctx       = rounded_n_ctx(options);
    const uint32_t n_sequences = (uint32_t) count_sequences(model, options);

    llama_context_params params  = llama_context_default_params();
    params.n_ctx                 = (uint32_t) n_ctx;
    params.n_batch               = std::max((uint32_t) std::min<int64_t>(options.n_batch, n_ctx), n_sequences);
    params.n_ubatch              = std::min<uint32_t>(options.n_ubatch, params.n_batch);
    params.n_seq_max             = n_sequences;
    params.n_outputs_max         = (uint32_t) n_outputs_max(model, options);
    params.n_outputs_max_per_seq = 1;
    params.n_threads             = options.n_threads;
    params.n_threads_batch       = options.n_threads_batch;
    params.flash_attn_type       = options.flash_attention;
    params.kv_unified            = options.kv_unified;
    params.swa_full              = options.swa_full;
    params.no_perf               = true;

    take_llama_log();
    ContextHandle ctx;
    try {
        ctx.reset(llama_init_from_model(model.get(), params));
    } catch (const std::exception & error) {
        throw ModelLoadError(std::string("llama.cpp cannot create a context: ") + error.what());
    }
    if (!ctx) {
        throw ModelLoadError(with_llama_log("llama.cpp cannot create a context of " + std::to_string(n_ctx) + " tokens"));
    }
    if (llama_get_memory(ctx.get()) == nullptr) {
        throw ModelLoadError("the model keeps no memory of a sequence (an embedding model): it cannot generate text");
    }
    return ctx;
}

int64_t context_bytes_per_token(Model & model, const ContextOptions & options) {
    // Both beyond the size at which a sliding window's cache stops growing.
    const int64_t n_small = round_up((int64_t) llama_model_n_swa(model.get()), n_ctx_step) + n_ctx_step;
    const int64_t n_large = n_small + n_ctx_step;
    return std::max<int64_t>(0, context_bytes(model, options, n_large) - context_bytes(model, options, n_small)) /
           (n_large - n_small);
}

}  // namespace llamaserve
