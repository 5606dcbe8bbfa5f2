// Sampling parameters as Python sends them, in the order of the keyword arguments of Engine.open.
#pragma once

#include <cstdint>
#include <optional>
#include <utility>
#include <vector>

#include "error.h"
#include "sampler.h"

namespace llamaserve {

inline SamplerSpec to_sampler_spec(float temperature, int32_t top_k, float top_p, float min_p, std::optional<uint32_t> seed,
                            float repeat_penalty, int32_t repeat_last_n, float frequency_penalty,
                            float presence_penalty, bool ignore_eos,
                            const std::vector<std::pair<int64_t, float>> & logit_bias, int32_t n_vocab) {
    SamplerSpec spec;
    spec.temperature       = temperature;
    spec.top_k             = top_k;
    spec.top_p             = top_p;
    spec.min_p             = min_p;
    spec.seed              = seed.value_or(LLAMA_DEFAULT_SEED);
    spec.repeat_penalty    = repeat_penalty;
    spec.repeat_last_n     = repeat_last_n;
    spec.frequency_penalty = frequency_penalty;
    spec.presence_penalty  = presence_penalty;
    spec.ignore_eos        = ignore_eos;
    for (const auto & [token, bias] : logit_bias) {
        if (token < 0 || token >= n_vocab) {
            throw BadTokenError(token, n_vocab);
        }
        spec.logit_bias.push_back({(llama_token) token, bias});
    }
    return spec;
}

}  // namespace llamaserve
