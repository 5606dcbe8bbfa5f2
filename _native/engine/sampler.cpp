#include "sampler.h"

#include <algorithm>
#include <cmath>

#include "error.h"
#include "llama-sampler.h"

namespace llamaserve {
namespace {

// Logits divided by less overflow, and the draw would fall on the last token; the likeliest one is what was meant.
constexpr float least_temperature = 1e-5f;

constexpr int32_t mirostat_m = 100;  // likeliest tokens that mirostat 1 estimates from, as in common/sampling.cpp

struct Temperature {
    float middle;
    float range;
};

// The range as it works: its lower end is no quotient that overflows.
Temperature safe_temperature(const SamplerSpec & spec) {
    if (spec.dynatemp_range <= 0.0f) {
        return {spec.temperature < least_temperature ? 0.0f : spec.temperature, 0.0f};
    }
    const float low  = std::max(least_temperature, spec.temperature - spec.dynatemp_range);
    const float high = spec.temperature + spec.dynatemp_range;
    return spec.temperature - spec.dynatemp_range >= least_temperature
               ? Temperature{spec.temperature, spec.dynatemp_range}
               : Temperature{(high + low) / 2, std::max(0.0f, (high - low) / 2)};
}

llama_sampler * make_dry(const SamplerSpec & spec, const Model & model) {
    // As llama_sampler_init_dry, which would read the whole vocabulary for every request to find the breakers.
    const DryBreakers::Found breakers = model.dry_breakers().find(spec.dry_sequence_breakers);
    if (breakers.empty()) {
        return llama_sampler_init_dry(model.vocab(), spec.dry_multiplier, spec.dry_base, spec.dry_allowed_length,
                                      spec.dry_penalty_last_n, nullptr, 0);
    }
    return llama_sampler_init_dry_testing(spec.dry_multiplier, spec.dry_base, spec.dry_allowed_length,
                                          spec.dry_penalty_last_n, breakers);
}

llama_sampler * make_one(SamplerKind kind, const SamplerSpec & spec, const Model & model) {
    const auto min_keep = (size_t) spec.min_keep;
    switch (kind) {
        case SamplerKind::penalties:
            return llama_sampler_init_penalties(model.n_vocab(), spec.repeat_last_n, spec.repeat_penalty,
                                                spec.frequency_penalty, spec.presence_penalty);
        case SamplerKind::dry:         return make_dry(spec, model);
        case SamplerKind::top_n_sigma: return llama_sampler_init_top_n_sigma(spec.top_n_sigma);
        case SamplerKind::top_k:       return llama_sampler_init_top_k(spec.top_k);
        case SamplerKind::typ_p:       return llama_sampler_init_typical(spec.typical_p, min_keep);
        case SamplerKind::top_p:       return llama_sampler_init_top_p(spec.top_p, min_keep);
        case SamplerKind::min_p:       return llama_sampler_init_min_p(spec.min_p, min_keep);
        case SamplerKind::xtc:
            return llama_sampler_init_xtc(spec.xtc_probability, spec.xtc_threshold, min_keep, spec.seed);
        case SamplerKind::temperature: {
            const Temperature temperature = safe_temperature(spec);
            return llama_sampler_init_temp_ext(temperature.middle, temperature.range, spec.dynatemp_exponent);
        }
        case SamplerKind::adaptive_p:
            return llama_sampler_init_adaptive_p(spec.adaptive_target, spec.adaptive_decay, spec.seed);
    }
    throw EngineError("a sampler of no kind");
}

}  // namespace

// --- what the parameters mean ---

bool SamplerSpec::draws_adaptively() const {
    return mirostat == 0 && (adaptive_target >= 0.0f ||
                             std::find(samplers.begin(), samplers.end(), SamplerKind::adaptive_p) != samplers.end());
}

bool SamplerSpec::changes_anything(SamplerKind kind) const {
    switch (kind) {
        case SamplerKind::penalties:
            return repeat_last_n > 0 && (repeat_penalty != 1.0f || frequency_penalty != 0.0f || presence_penalty != 0.0f);
        case SamplerKind::dry:         return dry_multiplier != 0.0f && dry_penalty_last_n > 0;
        case SamplerKind::top_n_sigma: return top_n_sigma > 0.0f;
        case SamplerKind::top_k:       return top_k > 0;
        case SamplerKind::typ_p:       return typical_p < 1.0f;
        case SamplerKind::top_p:       return top_p < 1.0f;
        case SamplerKind::min_p:       return min_p > 0.0f;
        case SamplerKind::xtc:         return xtc_probability > 0.0f && xtc_threshold <= 0.5f;
        case SamplerKind::temperature: return true;
        case SamplerKind::adaptive_p:  return false;  // it draws: not one of those before
    }
    return false;
}

bool SamplerSpec::is_active(SamplerKind kind) const {
    return mirostat == 0 && changes_anything(kind) && std::find(samplers.begin(), samplers.end(), kind) != samplers.end();
}

int32_t SamplerSpec::n_looked_back() const {
    return std::max(is_active(SamplerKind::penalties) ? repeat_last_n : 0,
                    is_active(SamplerKind::dry) ? dry_penalty_last_n : 0);
}

bool SamplerSpec::is_greedy() const {
    if (temperature >= least_temperature) {
        return false;
    }
    if (mirostat != 0) {
        return true;
    }
    return dynatemp_range <= 0.0f && !draws_adaptively() && takes_likeliest_in_order();
}

// A temperature of 0 leaves the likeliest token. It is that of all if nothing before can drop it, and if the samplers
// that move logits come before those that drop tokens.
bool SamplerSpec::takes_likeliest_in_order() const {
    bool moves_are_over  = false;
    bool has_temperature = false;
    for (const SamplerKind kind : samplers) {
        if (!is_active(kind)) {
            continue;
        }
        if (kind == SamplerKind::typ_p || kind == SamplerKind::xtc) {
            return false;
        }
        if (kind == SamplerKind::penalties || kind == SamplerKind::dry) {
            if (moves_are_over) {
                return false;
            }
            continue;
        }
        moves_are_over = true;
        has_temperature |= kind == SamplerKind::temperature;
    }
    return has_temperature;
}

int32_t SamplerSpec::n_likeliest() const {
    if (is_greedy()) {
        return 1;
    }
    for (const SamplerKind kind : samplers) {
        if (kind == SamplerKind::penalties || kind == SamplerKind::dry || !is_active(kind)) {
            continue;
        }
        return kind == SamplerKind::top_k ? top_k : 0;
    }
    return 0;
}

// --- the chain ---

std::vector<llama_logit_bias> all_biases(const SamplerSpec & spec, const Model & model) {
    std::vector<llama_logit_bias> biases;
    biases.reserve(spec.logit_bias.size());
    for (const auto & [token, bias] : spec.logit_bias) {
        if (!model.has_token(token)) {
            throw BadTokenError(token, model.n_vocab());
        }
        biases.push_back({(llama_token) token, bias});
    }
    if (spec.ignore_eos) {
        for (const llama_token token : model.eog_tokens()) {
            biases.push_back({token, -INFINITY});
        }
    }
    int32_t             n_suppressed = 0;
    const llama_token * suppressed   = llama_vocab_get_suppress_tokens(model.vocab(), &n_suppressed);
    for (int32_t i = 0; i < n_suppressed; i++) {
        biases.push_back({suppressed[i], -INFINITY});
    }
    std::stable_sort(biases.begin(), biases.end(), [](const llama_logit_bias & one, const llama_logit_bias & other) {
        return one.token < other.token;
    });
    size_t n_sums = 0;  // llama.cpp adds up several biases of a token only where it finds them by index
    for (const llama_logit_bias & bias : biases) {
        if (n_sums > 0 && biases[n_sums - 1].token == bias.token) {
            biases[n_sums - 1].bias += bias.bias;
        } else {
            biases[n_sums++] = bias;
        }
    }
    biases.resize(n_sums);
    return biases;
}

SamplerHandle make_sampler(const SamplerSpec & spec, const Model & model) {
    llama_sampler_chain_params params = llama_sampler_chain_default_params();
    params.no_perf                    = true;
    SamplerHandle chain(llama_sampler_chain_init(params));
    const auto add = [&](llama_sampler * sampler) { llama_sampler_chain_add(chain.get(), sampler); };

    const bool is_greedy = spec.is_greedy();
    for (const SamplerKind kind : spec.samplers) {
        // What follows the moves of a greedy chain drops tokens, never the likeliest.
        if (spec.is_active(kind) && (!is_greedy || kind == SamplerKind::penalties || kind == SamplerKind::dry)) {
            add(make_one(kind, spec, model));
        }
    }
    if (is_greedy) {
        add(llama_sampler_init_greedy());
    } else if (spec.mirostat != 0) {
        add(llama_sampler_init_temp(spec.temperature));
        add(spec.mirostat == 1 ? llama_sampler_init_mirostat(model.n_vocab(), spec.seed, spec.mirostat_tau,
                                                             spec.mirostat_eta, mirostat_m)
                               : llama_sampler_init_mirostat_v2(spec.seed, spec.mirostat_tau, spec.mirostat_eta));
    } else if (spec.draws_adaptively()) {
        add(make_one(SamplerKind::adaptive_p, spec, model));
    } else {
        add(llama_sampler_init_dist(spec.seed));
    }
    return chain;
}

}  // namespace llamaserve
