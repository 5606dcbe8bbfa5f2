// What crosses in a step: the cancel flag in, one RowOutput a row out.
#include "cancel_flag.h"
#include "register.h"
#include "step.h"
#include "text.h"

namespace py = pybind11;

namespace llamaserve {
namespace {

py::object row_error(const RowOutput & row) {
    const char * name = nullptr;
    switch (row.error) {
        case RowError::none:         return py::none();
        case RowError::context_full: name = "CONTEXT_FULL"; break;
        case RowError::decode:       name = "DECODE"; break;
        case RowError::aborted:      name = "ABORTED"; break;
    }
    return py::module_::import("llamaserve.engine.port").attr("RowError").attr(name);
}

}  // namespace

void register_step(py::module_ & m) {
    py::class_<CancelFlag, std::shared_ptr<CancelFlag>>(
        m, "CancelFlag", "Stops the step it was given to, from any thread; one flag for one step.")
        .def(py::init<>())
        .def("set", &CancelFlag::set, "Stop the step; it cannot be taken back.")
        .def("is_set", &CancelFlag::is_set);

    py::class_<RowOutput>(m, "RowOutput", "What a step did for one row.")
        .def_readonly("seq_id", &RowOutput::seq_id)
        .def_readonly("is_eog", &RowOutput::is_eog, "Whether the drawn token ends the generation.")
        .def_property_readonly(
            "token",
            [](const RowOutput & row) -> py::object {
                if (row.token == RowOutput::no_token) {
                    return py::none();
                }
                return py::int_(row.token);
            },
            "The token drawn; None for a piece that is not the last, and on error.")
        .def_property_readonly("piece", [](const RowOutput & row) { return py::bytes(row.piece); },
                               "Bytes of the token.")
        .def_property_readonly("error", &row_error, "A RowError, or None.")
        .def_property_readonly("message", [](const RowOutput & row) { return to_text(row.message); });
}

}  // namespace llamaserve
