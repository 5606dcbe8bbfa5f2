// SavedState: bytes that cross without a copy, in both directions.
#include <memory>

#include "error.h"
#include "register.h"
#include "saved_state.h"

namespace py = pybind11;

namespace llamaserve {
namespace {

// The bytes of a Python object, kept alive as long as they are used; the last user may be without the GIL.
std::shared_ptr<const uint8_t> borrow(const py::object & data, size_t & n_bytes) {
    auto view = std::make_unique<Py_buffer>();
    if (PyObject_GetBuffer(data.ptr(), view.get(), PyBUF_SIMPLE) != 0) {
        throw py::error_already_set();
    }
    n_bytes           = (size_t) view->len;
    const auto * data_begin = static_cast<const uint8_t *>(view->buf);
    return {data_begin, [held = view.release()](const uint8_t *) {
                const py::gil_scoped_acquire acquire;
                PyBuffer_Release(held);
                delete held;
            }};
}

std::shared_ptr<SavedState> load_state(const py::object & data, llama_pos start, llama_pos end) {
    if (start < 0 || start >= end) {
        throw EngineError("a state from position " + std::to_string(start) + " to " + std::to_string(end) +
                          " has no token");
    }
    auto state   = std::make_shared<SavedState>();
    state->bytes = borrow(data, state->n_bytes);
    state->start = start;
    state->end   = end;
    return state;
}

}  // namespace

void register_saved_state(py::module_ & m) {
    py::class_<SavedState, std::shared_ptr<SavedState>>(m, "SavedState", py::buffer_protocol(),
                                                        "A copy of what the context holds of a sequence.")
        .def(py::init(&load_state), py::arg("data"), py::arg("start"), py::arg("end"),
             "From the bytes of a state; they are not copied and must not change. Raises EngineError.")
        .def_readonly("n_bytes", &SavedState::n_bytes)
        .def_readonly("start", &SavedState::start, "The first position it has.")
        .def_readonly("end", &SavedState::end, "One behind its last position.")
        .def("view", [](const py::object & self) { return py::memoryview(self); }, "Its bytes, not copied.")
        .def_buffer([](const SavedState & state) {
            return py::buffer_info(state.bytes.get(), (py::ssize_t) state.n_bytes);
        });
}

}  // namespace llamaserve
