// Engine: plans in, rows out. Waiting for the worker, and anything that touches memory, releases the GIL.
#include <pybind11/stl.h>

#include <map>

#include "engine.h"
#include "error.h"
#include "register.h"
#include "sampler.h"
#include "text.h"

namespace py = pybind11;

namespace llamaserve {
namespace {

// A token id too large for llama_token must not wrap around into a valid one.
std::vector<llama_token> to_tokens(const py::sequence & values, int32_t n_vocab) {
    std::vector<llama_token> tokens;
    tokens.reserve(values.size());
    for (const py::handle value : values) {
        const auto token = value.cast<int64_t>();
        if (token < 0 || token >= n_vocab) {
            throw BadTokenError(token, n_vocab);
        }
        tokens.push_back((llama_token) token);
    }
    return tokens;
}

// (decode ids, [(seq_id, tokens, is_last), …], purge ids) as native.py sends it; a piece to be scored has n_top and the
// next token, -1 = none, too.
StepPlan to_plan(const Engine & engine, std::vector<llama_seq_id> decode, const py::sequence & pieces,
                 std::vector<llama_seq_id> purge, const std::map<llama_seq_id, py::bytes> & masks) {
    StepPlan plan;
    for (const auto & [seq_id, bytes] : masks) {
        plan.masks.emplace(seq_id, TokenMask(bytes));
    }
    plan.decode = std::move(decode);
    plan.purge  = std::move(purge);
    for (const py::handle item : pieces) {
        const auto piece = item.cast<py::tuple>();
        PromptPiece & added = plan.pieces.emplace_back();
        added.seq_id        = piece[0].cast<llama_seq_id>();
        added.tokens        = to_tokens(piece[1].cast<py::sequence>(), engine.model()->n_vocab());
        added.is_last       = piece[2].cast<bool>();
        if (piece.size() > 3) {
            added.n_top      = piece[3].cast<int32_t>();
            added.next_token = piece[4].cast<llama_token>();
        }
    }
    return plan;
}

ContextOptions to_context_options(int64_t n_ctx, int32_t n_slots, int32_t n_batch, int32_t n_ubatch, int32_t n_threads,
                                  int32_t n_threads_batch, int32_t flash_attention, bool kv_unified, bool swa_full,
                                  bool gathers_cells) {
    return {n_ctx,           n_slots,    n_batch, n_ubatch, n_threads, n_threads_batch,
            (llama_flash_attn_type) flash_attention, kv_unified, swa_full, gathers_cells};
}

}  // namespace

void register_engine(py::module_ & m) {
    py::class_<SuspendedSequence, std::shared_ptr<SuspendedSequence>>(
        m, "SuspendedSequence", "A sequence that gave its place up; can be resumed once.")
        .def_property_readonly("n_bytes", [](const SuspendedSequence & it) { return it.state ? it.state->n_bytes : 0; },
                               "Bytes its cells take; 0 = its tokens must be computed again.");

    py::class_<ContextOptions>(m, "ContextOptions", "Sizes and modes of a context, unchecked.")
        .def(py::init(&to_context_options), py::kw_only(), py::arg("n_ctx"), py::arg("n_slots"), py::arg("n_batch"),
             py::arg("n_ubatch"), py::arg("n_threads"), py::arg("n_threads_batch"), py::arg("flash_attention"),
             py::arg("kv_unified"), py::arg("swa_full"), py::arg("gathers_cells"),
             "flash_attention: -1 lets llama.cpp decide, 0 off, 1 on.")
        .def_property_readonly("rounded_n_ctx", &rounded_n_ctx, "What n_ctx becomes in the context.");

    m.def(
        "context_bytes_per_token",
        [](Model & model, const ContextOptions & options) {
            const py::gil_scoped_release release;
            return context_bytes_per_token(model, options);
        },
        py::arg("model"), py::arg("options"),
        "Bytes of memory a further token of n_ctx costs, measured on two small contexts.");

    py::class_<Engine>(m, "Engine", "A model with its context and worker; one caller thread.")
        .def(py::init([](std::shared_ptr<Model> model, const ContextOptions & options) {
                 const py::gil_scoped_release release;
                 return std::make_unique<Engine>(std::move(model), options);
             }),
             py::arg("model"), py::arg("options"), "Create and warm up a context. Raises ModelLoad.")
        .def_property_readonly(
            "failure",
            [](const Engine & engine) -> py::object {
                const std::string & reason = engine.failure();
                return reason.empty() ? py::object(py::none()) : py::object(to_text(reason));
            },
            "Why the engine computes nothing any more; None while it works.")
        .def_property_readonly("n_ctx", [](const Engine & engine) { return engine.sizes().n_ctx; })
        .def_property_readonly("n_ctx_seq", [](const Engine & engine) { return engine.sizes().n_ctx_seq; })
        .def_property_readonly("n_batch", [](const Engine & engine) { return engine.sizes().n_batch; })
        .def_property_readonly("n_ubatch", [](const Engine & engine) { return engine.sizes().n_ubatch; })
        .def_property_readonly("n_slots", [](const Engine & engine) { return engine.sizes().n_slots; })
        .def(
            "open",
            [](Engine & engine, llama_seq_id seq_id, const SamplerSpec & spec, const py::sequence & history,
               int32_t n_top) {
                const std::vector<llama_token> shown = to_tokens(history, engine.model()->n_vocab());
                const py::gil_scoped_release   release;
                engine.open(seq_id, spec, shown, n_top);
            },
            py::arg("seq_id"), py::arg("spec"), py::kw_only(), py::arg("history") = py::tuple(), py::arg("n_top") = -1,
            "Start a sequence with a sampler of its own, which looks back on `history`; it goes on from what its id "
            "holds. With `n_top` 0 or more its rows have scores. Raises EngineError, BadToken, BadSampler.")
        .def("close", &Engine::close, py::arg("seq_id"), py::kw_only(), py::arg("keep") = false,
             py::call_guard<py::gil_scoped_release>(), "End a sequence; whether it was open.")
        .def(
            "submit",
            [](Engine & engine, std::vector<llama_seq_id> decode, const py::sequence & pieces,
               std::shared_ptr<CancelFlag> flag, std::vector<llama_seq_id> purge, bool ahead,
               const std::map<llama_seq_id, py::bytes> & masks) {
                StepPlan plan = to_plan(engine, std::move(decode), pieces, std::move(purge), masks);
                const py::gil_scoped_release release;
                return engine.submit(std::move(plan), std::move(flag), ahead);
            },
            py::arg("decode"), py::arg("pieces") = py::tuple(), py::arg("flag").none(true) = nullptr, py::kw_only(),
            py::arg("purge") = std::vector<llama_seq_id>(), py::arg("ahead") = false,
            py::arg("masks") = std::map<llama_seq_id, py::bytes>(),
            "Start a step; its ticket. `pieces` are (seq_id, tokens, is_last), or with (…, n_top, next token or -1); "
            "`masks` say which tokens rows may draw. Raises EngineError, BadToken.")
        .def("collect", &Engine::collect, py::arg("ticket"), py::call_guard<py::gil_scoped_release>(),
             "Wait for the step; one output a row. Raises EngineError.")
        .def(
            "batch_eval_sample",
            [](Engine & engine, std::vector<llama_seq_id> decode, const py::sequence & pieces,
               std::shared_ptr<CancelFlag> flag, std::vector<llama_seq_id> purge) {
                StepPlan plan = to_plan(engine, std::move(decode), pieces, std::move(purge), {});
                const py::gil_scoped_release release;
                return engine.batch_eval_sample(std::move(plan), std::move(flag));
            },
            py::arg("decode"), py::arg("pieces") = py::tuple(), py::arg("flag").none(true) = nullptr, py::kw_only(),
            py::arg("purge") = std::vector<llama_seq_id>(),
            "Submit and collect: decode, sample, detokenise and check for the end, all rows in one call.")
        .def("unwind", &Engine::unwind, py::call_guard<py::gil_scoped_release>(),
             "Take back what the worker computes ahead; the ids of sequences where that failed.")
        .def("suspend", &Engine::suspend, py::arg("seq_id"), py::arg("max_bytes"),
             py::call_guard<py::gil_scoped_release>(),
             "Close a sequence, keeping what it needs to go on; its cells if they take at most max_bytes. Raises "
             "EngineError.")
        .def("resume", &Engine::resume, py::arg("seq_id"), py::arg("suspended"),
             py::call_guard<py::gil_scoped_release>(),
             "Open a suspended sequence under an id; False where its cells have no room. Raises EngineError.")
        .def_property_readonly("can_rewind", &Engine::can_rewind,
                               "Whether memory can take the last step of a sequence back.")
        .def_property_readonly("can_share", &Engine::can_share, "Whether ids can hold the same cells.")
        .def_property_readonly("n_ids", &Engine::n_ids, "Sequence ids the memory keeps books for.")
        .def_property_readonly("state_layout", &Engine::state_layout,
                               "What a saved state depends on beside the model.")
        .def("length", &Engine::length, py::arg("seq_id"), py::call_guard<py::gil_scoped_release>(),
             "Tokens an id holds. Raises EngineError.")
        .def(
            "memory_seq_cp",
            [](Engine & engine, llama_seq_id source, llama_seq_id target, llama_pos n_tokens) {
                engine.adopt(target, source, n_tokens);
            },
            py::arg("source"), py::arg("target"), py::arg("n_tokens"), py::call_guard<py::gil_scoped_release>(),
            "Have the target go on with the cells of the source, up to its first n_tokens, by metadata. Raises "
            "EngineError.")
        .def("trim", &Engine::trim, py::arg("seq_id"), py::arg("n_tokens"), py::call_guard<py::gil_scoped_release>(),
             "Have an id hold its first n_tokens only; False where memory cannot forget just the rest. Raises "
             "EngineError.")
        .def("save", &Engine::save, py::arg("seq_id"), py::arg("start"), py::arg("max_bytes"),
             py::call_guard<py::gil_scoped_release>(),
             "A copy of what an id holds from a position on; None above max_bytes. Raises EngineError.")
        .def("restore", &Engine::restore, py::arg("seq_id"), py::arg("state"),
             py::call_guard<py::gil_scoped_release>(),
             "Put a copy behind what an id holds; False where it has no room. Raises EngineError.")
        .def("checkpoint", &Engine::checkpoint, py::arg("seq_id"), py::arg("max_bytes"),
             py::call_guard<py::gil_scoped_release>(),
             "A copy of what a trim cannot bring back; None above max_bytes, or where there is no such thing. Raises "
             "EngineError.")
        .def("go_back", &Engine::go_back, py::arg("seq_id"), py::arg("checkpoint"),
             py::call_guard<py::gil_scoped_release>(),
             "Have an id hold what it held at a checkpoint; False where that fails: it holds nothing then. Raises "
             "EngineError.")
        .def_property_readonly(
            "ahead_rows",
            [](const Engine & engine) -> py::object {
                return engine.is_ahead() ? py::object(py::cast(engine.ahead_rows())) : py::object(py::tuple());
            },
            "Sequence ids of the decode that runs ahead, ascending; () = none does.")
        .def_property_readonly(
            "report",
            [](const Engine & engine) {
                const StepReport & report = engine.report();
                return py::make_tuple(
                    py::make_tuple(report.time.build, report.time.decode, report.time.sample, report.time.gather),
                    py::tuple(py::cast(report.purged)), report.n_splits, report.ran_ahead);
            },
            "((build, decode, sample, gather) seconds, purged ids, times halved, whether it ran ahead) of the step "
            "collected last.")
        .def("used_cells", &Engine::used_cells, "Cells in use, each counted once, without the step that runs ahead.")
        .def("n_runs", &Engine::n_runs, py::arg("seq_id"), py::call_guard<py::gil_scoped_release>(),
             "For tests: in how many runs of cells next to each other an id lies. Raises EngineError, EngineDown.")
        .def(
            "inject_faults",
            [](Engine & engine, const std::vector<int> & decode_codes, int n_failing_rewinds, int n_failing_returns) {
                Faults & faults = engine.faults();
                faults.decode_codes.assign(decode_codes.begin(), decode_codes.end());
                faults.n_failing_rewinds = n_failing_rewinds;
                faults.n_failing_returns = n_failing_returns;
            },
            py::kw_only(), py::arg("decode_codes") = std::vector<int>(), py::arg("n_failing_rewinds") = 0,
            py::arg("n_failing_returns") = 0, py::call_guard<py::gil_scoped_release>(),
            "For tests: the next calls of llama_decode return these codes and compute nothing (0: as usual), so many of "
            "the next rewinds fail, and so many of the next sequences whose cells are gathered are lost.")
        .def("shutdown", &Engine::shutdown, py::call_guard<py::gil_scoped_release>(),
             "Free the context; may be called twice.");
}

}  // namespace llamaserve
