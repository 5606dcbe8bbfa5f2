// read_gguf: the header of a model file.
#include <pybind11/stl.h>

#include "gguf_summary.h"
#include "register.h"

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
            return py::make_tuple(summary.metadata, summary.n_tensors, summary.tensors_bytes);
        },
        py::arg("path"),
        "(metadata, number of tensors, bytes of the tensors) of a GGUF file, without its weights. Raises ModelLoad.");
}

}  // namespace llamaserve
