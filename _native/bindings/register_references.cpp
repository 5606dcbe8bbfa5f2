// For tests: llama.cpp's own sampler of the same parameters, which RowSampler must agree with, and LogProbs by itself.
#include <pybind11/stl.h>

#include <memory>

#include "common.h"
#include "error.h"
#include "log_probs.h"
#include "logits_buffer.h"
#include "model.h"
#include "register.h"
#include "sampler.h"
#include "sampling.h"

namespace py = pybind11;

namespace llamaserve {
namespace {

common_sampler_type to_common(SamplerKind kind) {
    switch (kind) {
        case SamplerKind::penalties:   return COMMON_SAMPLER_TYPE_PENALTIES;
        case SamplerKind::dry:         return COMMON_SAMPLER_TYPE_DRY;
        case SamplerKind::top_n_sigma: return COMMON_SAMPLER_TYPE_TOP_N_SIGMA;
        case SamplerKind::top_k:       return COMMON_SAMPLER_TYPE_TOP_K;
        case SamplerKind::typ_p:       return COMMON_SAMPLER_TYPE_TYPICAL_P;
        case SamplerKind::top_p:       return COMMON_SAMPLER_TYPE_TOP_P;
        case SamplerKind::min_p:       return COMMON_SAMPLER_TYPE_MIN_P;
        case SamplerKind::xtc:         return COMMON_SAMPLER_TYPE_XTC;
        case SamplerKind::temperature: return COMMON_SAMPLER_TYPE_TEMPERATURE;
        case SamplerKind::adaptive_p:  return COMMON_SAMPLER_TYPE_ADAPTIVE_P;
    }
    throw py::value_error("a sampler of no kind");
}

common_params_sampling to_common(const SamplerSpec & spec, const Model & model) {
    common_params_sampling params;
    params.seed                  = spec.seed;
    params.min_keep              = spec.min_keep;
    params.top_k                 = spec.top_k;
    params.top_p                 = spec.top_p;
    params.min_p                 = spec.min_p;
    params.xtc_probability       = spec.xtc_probability;
    params.xtc_threshold         = spec.xtc_threshold;
    params.typ_p                 = spec.typical_p;
    params.temp                  = spec.temperature;
    params.dynatemp_range        = spec.dynatemp_range;
    params.dynatemp_exponent     = spec.dynatemp_exponent;
    params.penalty_last_n        = spec.repeat_last_n;
    params.penalty_repeat        = spec.repeat_penalty;
    params.penalty_freq          = spec.frequency_penalty;
    params.penalty_present       = spec.presence_penalty;
    params.dry_multiplier        = spec.dry_multiplier;
    params.dry_base              = spec.dry_base;
    params.dry_allowed_length    = spec.dry_allowed_length;
    params.dry_penalty_last_n    = spec.dry_penalty_last_n;
    params.dry_sequence_breakers = spec.dry_sequence_breakers;
    params.adaptive_target       = spec.adaptive_target;
    params.adaptive_decay        = spec.adaptive_decay;
    params.mirostat              = spec.mirostat;
    params.mirostat_tau          = spec.mirostat_tau;
    params.mirostat_eta          = spec.mirostat_eta;
    params.top_n_sigma           = spec.top_n_sigma;
    params.samplers.clear();
    for (const SamplerKind kind : spec.samplers) {
        params.samplers.push_back(to_common(kind));
    }
    for (const llama_logit_bias & bias : all_biases(spec, model)) {
        params.logit_bias.push_back(bias);
    }
    return params;
}

class CommonSampler {
public:
    CommonSampler(std::shared_ptr<Model> model, const SamplerSpec & spec) : model_(std::move(model)) {
        common_params_sampling params = to_common(spec, *model_);
        sampler_.reset(common_sampler_init(model_->get(), params));
    }

    llama_token draw(const py::buffer & logits) {
        const py::buffer_info         info   = logits.request();
        const float *                 values = logits_of(info, model_->n_vocab());
        std::vector<llama_token_data> candidates;
        for (llama_token id = 0; id < model_->n_vocab(); id++) {
            candidates.push_back({id, values[id], 0.0f});
        }
        llama_token_data_array array{candidates.data(), candidates.size(), -1, false};
        llama_sampler_apply(common_sampler_get(sampler_.get()), &array);
        const llama_token token = array.data[array.selected].id;
        common_sampler_accept(sampler_.get(), token, true);
        return token;
    }

    void show_history(const std::vector<llama_token> & tokens) {
        for (const llama_token token : tokens) {
            common_sampler_accept(sampler_.get(), token, false);
        }
    }

private:
    struct Free {
        void operator()(common_sampler * sampler) const { common_sampler_free(sampler); }
    };

    std::shared_ptr<Model>                model_;
    std::unique_ptr<common_sampler, Free> sampler_;
};

py::tuple log_probs(const py::buffer & logits, llama_token token, int32_t n_top) {
    const py::buffer_info info    = logits.request();
    const auto            n_vocab = (int32_t) info.size;
    if (n_vocab == 0 || token < 0 || token >= n_vocab) {
        throw BadTokenError(token, n_vocab);
    }
    const TokenScore score = LogProbs(logits_of(info, n_vocab), n_vocab).score(token, n_top);
    py::list         top;
    for (const TokenProb & likely : score.top) {
        top.append(py::make_tuple(likely.token, likely.logprob));
    }
    return py::make_tuple(score.chosen.logprob, top);
}

}  // namespace

void register_references(py::module_ & m) {
    py::class_<CommonSampler>(m, "CommonSampler", "llama.cpp's own sampler of the same parameters; for tests.")
        .def(py::init<std::shared_ptr<Model>, const SamplerSpec &>(), py::arg("model"), py::arg("spec"))
        .def("draw", &CommonSampler::draw, py::arg("logits"), "The next token, from a buffer of float32.")
        .def("show_history", &CommonSampler::show_history, py::arg("tokens"), "What the samplers look back on.");

    m.def("log_probs", &log_probs, py::arg("logits"), py::arg("token"), py::arg("n_top"),
          "(logarithm of the token's probability, [(token, logarithm), …] of the likeliest); for tests.");
}

}  // namespace llamaserve
