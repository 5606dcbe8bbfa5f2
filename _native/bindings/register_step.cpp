// What crosses in a step: the cancel flag in, one RowOutput a row out.
#include <cmath>

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
        case RowError::no_token:     name = "NO_TOKEN"; break;
        case RowError::aborted:      name = "ABORTED"; break;
    }
    return py::module_::import("llamaserve.engine.port").attr("RowError").attr(name);
}

py::tuple scores_of(const RowOutput & row) {
    py::tuple scores(row.scores.size());
    for (size_t i = 0; i < row.scores.size(); i++) {
        const TokenScore & score = row.scores[i];
        py::tuple          top(score.top.size());
        for (size_t j = 0; j < score.top.size(); j++) {
            const TokenProb & likely = score.top[j];
            top[j] = py::make_tuple(likely.token, py::bytes(likely.piece), likely.logprob);
        }
        py::object logprob = py::none();
        if (!std::isnan(score.chosen.logprob)) {
            logprob = py::float_(score.chosen.logprob);
        }
        scores[i] = py::make_tuple(score.chosen.token, py::bytes(score.chosen.piece), logprob, top);
    }
    return scores;
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
        .def_property_readonly("scores", &scores_of,
                               "Of the tokens that were asked for: (token, bytes, logarithm, ((token, bytes, logarithm), …)).")
        .def_property_readonly("error", &row_error, "A RowError, or None.")
        .def_property_readonly("message", [](const RowOutput & row) { return to_text(row.message); });
}

}  // namespace llamaserve
