#include "sampler.h"

#include <cmath>
#include <map>
#include <string>

#include "error.h"

namespace llamaserve {
std::vector<llama_logit_bias> all_biases(const SamplerSpec & spec, const Model & model) {
    std::map<llama_token, float> sums;  // llama.cpp adds up several biases of a token only where it finds them by index
    for (const llama_logit_bias & bias : spec.logit_bias) {
        if (!model.has_token(bias.token)) {
            throw BadTokenError(bias.token, model.n_vocab());
        }
        sums[bias.token] += bias.bias;
    }
    if (spec.ignore_eos) {
        for (const llama_token token : model.eog_tokens()) {
            sums[token] = -INFINITY;
        }
    }
    std::vector<llama_logit_bias> biases;
    int32_t                       n_forbidden = 0;
    for (const auto & [token, bias] : sums) {
        biases.push_back({token, bias});
        n_forbidden += bias == -INFINITY;
    }
    if (n_forbidden == model.n_vocab()) {
        throw BadSamplerError("logit_bias", "a ban on all " + std::to_string(model.n_vocab()) + " tokens",
                              "one that leaves a token to draw");
    }
    return biases;
}

SamplerHandle make_sampler(const SamplerSpec & spec, const Model & model) {
    const std::vector<llama_logit_bias> biases = all_biases(spec, model);

    llama_sampler_chain_params params = llama_sampler_chain_default_params();
    params.no_perf                    = true;
    SamplerHandle chain(llama_sampler_chain_init(params));
    const auto add = [&](llama_sampler * sampler) { llama_sampler_chain_add(chain.get(), sampler); };

    if (!biases.empty()) {
        add(llama_sampler_init_logit_bias(model.n_vocab(), (int32_t) biases.size(), biases.data()));
    }
    if (spec.has_penalties()) {
        add(llama_sampler_init_penalties(model.n_vocab(), spec.repeat_last_n, spec.repeat_penalty,
                                         spec.frequency_penalty, spec.presence_penalty));
    }
    if (spec.is_greedy()) {
        add(llama_sampler_init_greedy());
        return chain;
    }
    if (spec.top_k > 0) {
        add(llama_sampler_init_top_k(spec.top_k));
    }
    if (spec.top_p < 1.0f) {
        add(llama_sampler_init_top_p(spec.top_p, 1));
    }
    if (spec.min_p > 0.0f) {
        add(llama_sampler_init_min_p(spec.min_p, 1));
    }
    add(llama_sampler_init_temp(spec.temperature));
    add(llama_sampler_init_dist(spec.seed));
    return chain;
}

}  // namespace llamaserve
