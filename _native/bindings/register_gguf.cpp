// read_gguf: the header of a model file.
#include <pybind11/stl.h>

#include "gguf_summary.h"
#include "register.h"
#include "text.h"

namespace py = pybind11;

namespace llamaserve {

void register_gguf(py::module_ & m) {
    m.def(
        "read_gguf",
        [](const std::string & path) {
            GgufSummary summary;
            {
                const py::gil_scoped_release release;
                summary = read_gguf(path);
            }
            py::dict metadata;
            for (const auto & [key, value] : summary.metadata) {
                const auto * text     = std::get_if<std::string>(&value);
                metadata[to_text(key)] = text != nullptr ? py::object(to_text(*text)) : py::cast(value);
            }
            return py::make_tuple(metadata, summary.n_tensors);
        },
        py::arg("path"),
        "(metadata, number of tensors) of a GGUF file, without its weights. Raises ModelLoad.");
}

}  // namespace llamaserve
