// RowSampler by itself: for tests that compare it with the plain chain.
#include <pybind11/stl.h>

#include "register.h"
#include "row_sampler.h"
#include "sampler_spec.h"

namespace py = pybind11;

namespace llamaserve {
namespace {

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
        const py::buffer_info info = logits.request();
        if (info.format != py::format_descriptor<float>::format() || info.ndim != 1 ||
            info.size != model_->n_vocab() || info.strides[0] != (py::ssize_t) sizeof(float)) {
            throw py::value_error("logits must be " + std::to_string(model_->n_vocab()) + " floats of 32 bits in a row");
        }
        const auto *                 values = static_cast<const float *>(info.ptr);
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
    py::class_<TestSampler>(m, "RowSampler", "Draws the tokens of one sequence; for tests.")
        .def(py::init([](std::shared_ptr<Model> model, bool whole_vocabulary, float temperature, int32_t top_k,
                         float top_p, float min_p, std::optional<uint32_t> seed, float repeat_penalty,
                         int32_t repeat_last_n, float frequency_penalty, float presence_penalty, bool ignore_eos,
                         const std::vector<std::pair<int64_t, float>> & logit_bias) {
                 const SamplerSpec spec =
                     to_sampler_spec(temperature, top_k, top_p, min_p, seed, repeat_penalty, repeat_last_n,
                                     frequency_penalty, presence_penalty, ignore_eos, logit_bias, model->n_vocab());
                 return std::make_unique<TestSampler>(std::move(model), spec, whole_vocabulary);
             }),
             py::arg("model"), py::kw_only(), py::arg("whole_vocabulary"), py::arg("temperature"), py::arg("top_k"),
             py::arg("top_p"), py::arg("min_p"), py::arg("seed").none(true), py::arg("repeat_penalty"),
             py::arg("repeat_last_n"), py::arg("frequency_penalty"), py::arg("presence_penalty"),
             py::arg("ignore_eos"), py::arg("logit_bias"),
             "whole_vocabulary hands every token to llama.cpp's chain. Raises BadToken, BadSampler.")
        .def("draw", &TestSampler::draw, py::arg("logits"), py::arg("mask").none(true) = py::none(),
             "The next token, from a buffer of float32; of those that a mask allows.")
        .def("show_history", &TestSampler::show_history, py::arg("tokens"), "What penalties look back on.");
}

}  // namespace llamaserve
