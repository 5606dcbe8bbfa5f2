// One request's sampling parameters and the llama.cpp chain built from them.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "dry_breakers.h"
#include "llama_handles.h"
#include "model.h"

namespace llamaserve {

// The samplers a request can order, in llama.cpp's default order; adaptive_p draws, wherever it stands.
enum class SamplerKind { penalties, dry, top_n_sigma, top_k, typ_p, top_p, min_p, xtc, temperature, adaptive_p };

// Mirrors SamplingParams of llamaserve/sampling.py, which checks the ranges; the defaults are those of common/common.h.
// Token ids are as wide as they came: make_sampler and TokenRules check them against the vocabulary.
struct SamplerSpec {
    float    temperature       = 0.8f;
    float    dynatemp_range    = 0.0f;
    float    dynatemp_exponent = 1.0f;
    int32_t  top_k             = 40;
    float    top_p             = 0.95f;
    float    min_p             = 0.05f;
    float    typical_p         = 1.0f;
    float    top_n_sigma       = -1.0f;
    float    xtc_probability   = 0.0f;
    float    xtc_threshold     = 0.1f;
    int32_t  min_keep          = 0;
    int32_t  mirostat          = 0;
    float    mirostat_tau      = 5.0f;
    float    mirostat_eta      = 0.1f;
    float    adaptive_target   = -1.0f;
    float    adaptive_decay    = 0.9f;
    uint32_t seed              = LLAMA_DEFAULT_SEED;  // this value draws a random seed

    float   repeat_penalty    = 1.0f;
    int32_t repeat_last_n     = 64;
    float   frequency_penalty = 0.0f;
    float   presence_penalty  = 0.0f;

    float                    dry_multiplier        = 0.0f;
    float                    dry_base              = 1.75f;
    int32_t                  dry_allowed_length    = 2;
    int32_t                  dry_penalty_last_n    = 64;
    std::vector<std::string> dry_sequence_breakers = {"\n", ":", "\"", "*"};

    std::vector<SamplerKind> samplers = {SamplerKind::penalties, SamplerKind::dry,   SamplerKind::top_n_sigma,
                                         SamplerKind::top_k,     SamplerKind::typ_p, SamplerKind::top_p,
                                         SamplerKind::min_p,     SamplerKind::xtc,   SamplerKind::temperature};

    bool                                   ignore_eos = false;
    int32_t                                min_tokens = 0;
    std::vector<std::pair<int64_t, float>> logit_bias;
    std::vector<int64_t>                   allowed_tokens;  // empty = all
    std::vector<std::vector<int64_t>>      bad_words;
    std::vector<int64_t>                   stop_tokens;

    // Whether a sampler is ordered and changes anything; none is beside mirostat but the temperature.
    bool is_active(SamplerKind kind) const;

    // Tokens the chain looks back on, prompt included; 0 = none.
    int32_t n_looked_back() const;

    // Whether the chain takes the likeliest token, as penalties and biases leave it.
    bool is_greedy() const;

    // Of the tokens as penalties and biases leave them the chain looks at so many of the likeliest only; 0 = maybe at all.
    int32_t n_likeliest() const;

    // Whether adaptive_p draws. llama.cpp wants it ordered; a target alone says as much.
    bool draws_adaptively() const;

private:
    bool changes_anything(SamplerKind kind) const;
    bool takes_likeliest_in_order() const;
};

// The biases of a request, and a ban on the tokens that the model suppresses and, where asked for, on those that end a
// generation; one a token, in ascending order. Throws BadTokenError for one outside the vocabulary.
std::vector<llama_logit_bias> all_biases(const SamplerSpec & spec, const Model & model);

// The chain that common/sampling.cpp makes of the same parameters, without the biases that it begins with: the samplers in
// their order without those that change nothing, then what draws; or temperature and mirostat. Always ends in a sampler that
// selects a token. A temperature below 1e-5 is 0. Throws BadSamplerError as DryBreakers::find.
SamplerHandle make_sampler(const SamplerSpec & spec, const Model & model);

}  // namespace llamaserve
