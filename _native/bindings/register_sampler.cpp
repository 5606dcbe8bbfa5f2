// SamplerSpec, and RowSampler by itself: for tests that compare it with the plain chain and with llama.cpp's own.
#include <pybind11/stl.h>

#include <array>
#include <utility>

#include "error.h"
#include "logits_buffer.h"
#include "register.h"
#include "row_sampler.h"

namespace py = pybind11;

namespace llamaserve {
namespace {

constexpr std::array<std::pair<const char *, SamplerKind>, 10> sampler_names{{
    {"penalties", SamplerKind::penalties},
    {"dry", SamplerKind::dry},
    {"top_n_sigma", SamplerKind::top_n_sigma},
    {"top_k", SamplerKind::top_k},
    {"typ_p", SamplerKind::typ_p},
    {"top_p", SamplerKind::top_p},
    {"min_p", SamplerKind::min_p},
    {"xtc", SamplerKind::xtc},
    {"temperature", SamplerKind::temperature},
    {"adaptive_p", SamplerKind::adaptive_p},
}};

std::vector<std::string> names_of(const SamplerSpec & spec) {
    std::vector<std::string> names;
    for (const SamplerKind kind : spec.samplers) {
        for (const auto & [name, named] : sampler_names) {
            if (named == kind) {
                names.emplace_back(name);
            }
        }
    }
    return names;
}

void set_samplers(SamplerSpec & spec, const std::vector<std::string> & names) {
    spec.samplers.clear();
    for (const std::string & wanted : names) {
        bool is_known = false;
        for (const auto & [name, kind] : sampler_names) {
            if (wanted == name) {
                spec.samplers.push_back(kind);
                is_known = true;
            }
        }
        if (!is_known) {
            throw py::value_error("there is no sampler " + wanted);
        }
    }
}

// Keeps the model alive, whose vocabulary the chain was made for.
class TestSampler {
public:
    TestSampler(std::shared_ptr<Model> model, const SamplerSpec & spec, bool whole_vocabulary)
        : model_(std::move(model)), sampler_(spec, *model_) {
        if (whole_vocabulary) {
            sampler_.use_whole_vocabulary();
        }
    }

    llama_token draw(const py::buffer & logits, const std::optional<py::bytes> & bytes) {
        const py::buffer_info        info   = logits.request();
        const float *                values = logits_of(info, model_->n_vocab());
        std::optional<TokenMask>     mask;
        if (bytes) {
            mask.emplace(*bytes);
            if (mask->n_bytes() != TokenMask::size_of(model_->n_vocab())) {
                throw py::value_error("the mask must have " + std::to_string(TokenMask::size_of(model_->n_vocab())) +
                                      " bytes");
            }
        }
        const py::gil_scoped_release release;
        return sampler_.draw(values, mask ? &*mask : nullptr);
    }

    void show_history(const std::vector<llama_token> & tokens) {
        for (const llama_token token : tokens) {
            if (!model_->has_token(token)) {
                throw BadTokenError(token, model_->n_vocab());
            }
        }
        sampler_.show_history(tokens);
    }

private:
    std::shared_ptr<Model> model_;
    RowSampler             sampler_;
};

}  // namespace

void register_sampler(py::module_ & m) {
    py::class_<SamplerSpec>(m, "SamplerSpec", "How the tokens of a sequence are drawn; unchecked.")
        .def(py::init<>(), "With llama.cpp's defaults.")
        .def_readwrite("temperature", &SamplerSpec::temperature)
        .def_readwrite("dynatemp_range", &SamplerSpec::dynatemp_range)
        .def_readwrite("dynatemp_exponent", &SamplerSpec::dynatemp_exponent)
        .def_readwrite("top_k", &SamplerSpec::top_k)
        .def_readwrite("top_p", &SamplerSpec::top_p)
        .def_readwrite("min_p", &SamplerSpec::min_p)
        .def_readwrite("typical_p", &SamplerSpec::typical_p)
        .def_readwrite("top_n_sigma", &SamplerSpec::top_n_sigma)
        .def_readwrite("xtc_probability", &SamplerSpec::xtc_probability)
        .def_readwrite("xtc_threshold", &SamplerSpec::xtc_threshold)
        .def_readwrite("min_keep", &SamplerSpec::min_keep)
        .def_readwrite("mirostat", &SamplerSpec::mirostat)
        .def_readwrite("mirostat_tau", &SamplerSpec::mirostat_tau)
        .def_readwrite("mirostat_eta", &SamplerSpec::mirostat_eta)
        .def_readwrite("adaptive_target", &SamplerSpec::adaptive_target)
        .def_readwrite("adaptive_decay", &SamplerSpec::adaptive_decay)
        .def_readwrite("seed", &SamplerSpec::seed, "2**32 - 1 draws one.")
        .def_readwrite("repeat_penalty", &SamplerSpec::repeat_penalty)
        .def_readwrite("repeat_last_n", &SamplerSpec::repeat_last_n)
        .def_readwrite("frequency_penalty", &SamplerSpec::frequency_penalty)
        .def_readwrite("presence_penalty", &SamplerSpec::presence_penalty)
        .def_readwrite("dry_multiplier", &SamplerSpec::dry_multiplier)
        .def_readwrite("dry_base", &SamplerSpec::dry_base)
        .def_readwrite("dry_allowed_length", &SamplerSpec::dry_allowed_length)
        .def_readwrite("dry_penalty_last_n", &SamplerSpec::dry_penalty_last_n)
        .def_readwrite("dry_sequence_breakers", &SamplerSpec::dry_sequence_breakers)
        .def_property("samplers", &names_of, &set_samplers, "Their names in order. Raises ValueError for no name.")
        .def_readwrite("ignore_eos", &SamplerSpec::ignore_eos)
        .def_readwrite("min_tokens", &SamplerSpec::min_tokens)
        .def_readwrite("logit_bias", &SamplerSpec::logit_bias)
        .def_readwrite("allowed_token_ids", &SamplerSpec::allowed_tokens, "[] = all.")
        .def_readwrite("bad_words", &SamplerSpec::bad_words)
        .def_readwrite("stop_tokens", &SamplerSpec::stop_tokens);

    py::class_<TestSampler>(m, "RowSampler", "Draws the tokens of one sequence; for tests.")
        .def(py::init<std::shared_ptr<Model>, const SamplerSpec &, bool>(), py::arg("model"), py::arg("spec"),
             py::kw_only(), py::arg("whole_vocabulary"),
             "whole_vocabulary hands every token to the chain. Raises BadToken, BadSampler.")
        .def("draw", &TestSampler::draw, py::arg("logits"), py::arg("mask").none(true) = py::none(),
             "The next token, from a buffer of float32; of those that a mask allows.")
        .def("show_history", &TestSampler::show_history, py::arg("tokens"), "What the samplers look back on.");
}

}  // namespace llamaserve
