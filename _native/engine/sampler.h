// One request's sampling parameters and the llama.cpp chain built from them.
#pragma once

#include <cstdint>
#include <vector>

#include "llama_handles.h"
#include "model.h"

namespace llamaserve {

// Mirrors SamplingParams of llamaserve/request.py, which checks the ranges.
struct SamplerSpec {
    float                         temperature       = 0.8f;
    int32_t                       top_k             = 40;
    float                         top_p             = 0.95f;
    float                         min_p             = 0.05f;
    uint32_t                      seed              = LLAMA_DEFAULT_SEED;  // this value draws a random seed
    float                         repeat_penalty    = 1.0f;
    int32_t                       repeat_last_n     = 64;
    float                         frequency_penalty = 0.0f;
    float                         presence_penalty  = 0.0f;
    bool                          ignore_eos        = false;
    std::vector<llama_logit_bias> logit_bias;

    // Whether the chain must see the prompt too.
    bool has_penalties() const {
        return repeat_last_n > 0 && (repeat_penalty != 1.0f || frequency_penalty != 0.0f || presence_penalty != 0.0f);
    }

    // Whether the chain takes the likeliest token. Logits divided by less overflow, and the draw would fall on the last
    // token; the likeliest one is what was meant.
    bool is_greedy() const { return temperature < 1e-5f; }
};

// The biases of a request, and a ban on every end-of-generation token where asked for; one a token. Throws BadTokenError
// for one outside the vocabulary, BadSamplerError when every token is forbidden.
std::vector<llama_logit_bias> all_biases(const SamplerSpec & spec, const Model & model);

// The chain of llama.cpp's defaults (common/common.h): bias, penalties, top_k, top_p, min_p, temperature, draw; always
// ends in a sampler that selects a token. A temperature below 1e-5 is 0. Throws BadTokenError for a bias outside the
// vocabulary, BadSamplerError when every token is forbidden.
SamplerHandle make_sampler(const SamplerSpec & spec, const Model & model);

}  // namespace llamaserve
