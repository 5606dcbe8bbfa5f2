// Model: load, metadata, vocabulary. Everything that takes longer than a lookup releases the GIL.
#include <pybind11/functional.h>
#include <pybind11/stl.h>

#include "error.h"
#include "model.h"
#include "register.h"
#include "text.h"

namespace py = pybind11;

namespace llamaserve {
namespace {

std::shared_ptr<Model> load_model(const std::string & path, int32_t n_gpu_layers, bool use_mmap, bool use_mlock,
                                  bool check_tensors, const std::function<bool(float)> & progress) {
    // pybind11's std::function takes the GIL itself when llama.cpp calls back.
    const py::gil_scoped_release release;
    return Model::load({path, n_gpu_layers, use_mmap, use_mlock, check_tensors, /* header_only */ false}, progress);
}

std::shared_ptr<Model> inspect_model(const std::string & path) {
    const py::gil_scoped_release release;
    ModelOptions options;
    options.path        = path;
    options.header_only = true;
    return Model::load(options, nullptr);
}

const char * memory_name(const Model & model) {
    switch (model.memory()) {
        case MemoryKind::kv:             return "kv";
        case MemoryKind::sliding_window: return "sliding_window";
        case MemoryKind::recurrent:      return "recurrent";
        case MemoryKind::hybrid:         return "hybrid";
    }
    return "kv";
}

py::dict metadata(const Model & model) {
    py::dict pairs;
    for (const auto & [key, value] : model.metadata()) {
        pairs[to_text(key)] = to_text(value);
    }
    return pairs;
}

py::object fim_tokens(const Model & model) {
    const auto tokens = model.fim_tokens();
    if (!tokens) {
        return py::none();
    }
    const auto [repository, file] = model.fim_context_tokens();
    return py::make_tuple((*tokens)[0], (*tokens)[1], (*tokens)[2], repository, file);
}

py::object chat_template(const Model & model) {
    const auto text = model.chat_template();
    return text ? py::object(to_text(*text)) : py::none();
}

py::bytes detokenize(const Model & model, const std::vector<int64_t> & tokens, bool special) {
    std::string bytes;
    {
        const py::gil_scoped_release release;
        for (const int64_t token : tokens) {
            model.append_piece(token, special, bytes);
        }
    }
    return py::bytes(bytes);
}

}  // namespace

void register_model(py::module_ & m) {
    py::class_<Model, std::shared_ptr<Model>>(m, "Model", "A model file in memory; immutable, any thread.")
        .def_static("load", &load_model, py::arg("path"), py::kw_only(), py::arg("n_gpu_layers"), py::arg("use_mmap"),
                    py::arg("use_mlock"), py::arg("check_tensors"), py::arg("progress").none(true),
                    "Load a GGUF file. `progress` gets 0.0 to 1.0; returning False stops. Raises ModelLoad.")
        .def_static("inspect", &inspect_model, py::arg("path"),
                    "The model of a GGUF file without its weights: answers questions, cannot have a context. Raises "
                    "ModelLoad.")
        .def_property_readonly("architecture", [](const Model & model) { return to_text(model.architecture()); })
        .def_property_readonly("description", [](const Model & model) { return to_text(model.description()); })
        .def_property_readonly("metadata", &metadata)
        .def_property_readonly("chat_template", &chat_template)
        .def_property_readonly("memory", &memory_name, "The value of a MemoryKind.")
        .def_property_readonly("size_bytes", [](const Model & model) { return llama_model_size(model.get()); })
        .def_property_readonly("n_params", [](const Model & model) { return llama_model_n_params(model.get()); })
        .def_property_readonly("n_ctx_train", [](const Model & model) { return llama_model_n_ctx_train(model.get()); })
        .def_property_readonly("n_embd", [](const Model & model) { return llama_model_n_embd(model.get()); })
        .def_property_readonly("n_layers", [](const Model & model) { return llama_model_n_layer(model.get()); })
        .def_property_readonly("n_tokens", &Model::n_vocab, "Size of the vocabulary.")
        .def_property_readonly("fim_tokens", &fim_tokens,
                               "Prefix, suffix and middle token for filling in the middle, then those before names of repositories "
                               "and files, which may be None; None without the first three.")
        .def(
            "tokenize",
            [](const Model & model, const std::string & text, bool add_special, bool parse_special) {
                const py::gil_scoped_release release;
                return model.tokenize(text, add_special, parse_special);
            },
            py::arg("text"), py::kw_only(), py::arg("add_special"), py::arg("parse_special"),
            "Token ids of UTF-8 bytes.")
        .def("detokenize", &detokenize, py::arg("tokens"), py::kw_only(), py::arg("special"),
             "Bytes of the tokens. Raises BadToken.")
        .def(
            "find_breakers",
            [](const Model & model, const std::vector<std::string> & texts) {
                const py::gil_scoped_release release;
                model.dry_breakers().find(texts);
            },
            py::arg("texts"),
            "Look up what DRY has to know of these texts, so that a sampler finds it. Raises BadSampler where too many "
            "tokens have one of them.")
        .def("is_eog", &Model::is_eog, py::arg("token"), "Whether the token ends a generation. Raises BadToken.");
}

}  // namespace llamaserve
