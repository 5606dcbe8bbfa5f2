// Owning handles for what llama.cpp allocates: nothing in the engine frees by hand.
#pragma once

#include <memory>

#include "gguf.h"
#include "llama.h"

namespace llamaserve {

struct LlamaDeleter {
    void operator()(llama_model * model) const { llama_model_free(model); }
    void operator()(llama_context * ctx) const { llama_free(ctx); }
    void operator()(llama_sampler * sampler) const { llama_sampler_free(sampler); }
    void operator()(gguf_context * gguf) const { gguf_free(gguf); }
};

using ModelHandle   = std::unique_ptr<llama_model, LlamaDeleter>;
using ContextHandle = std::unique_ptr<llama_context, LlamaDeleter>;
using SamplerHandle = std::unique_ptr<llama_sampler, LlamaDeleter>;
using GgufHandle    = std::unique_ptr<gguf_context, LlamaDeleter>;

}  // namespace llamaserve
