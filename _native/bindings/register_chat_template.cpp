// ChatTemplate and ChatParser: rendering releases the GIL; a parser's calls take microseconds and keep it.
#include <pybind11/stl.h>

#include "chat_parser.h"
#include "chat_template.h"
#include "register.h"
#include "text.h"

namespace py = pybind11;

namespace llamaserve {
namespace {

py::tuple to_texts(const std::vector<std::string> & texts) {
    py::tuple result(texts.size());
    for (size_t i = 0; i < texts.size(); i++) {
        result[i] = to_text(texts[i]);
    }
    return result;
}

const char * to_word(ToolSupport support) {
    switch (support) {
        case ToolSupport::native:
            return "native";
        case ToolSupport::calls_only:
            return "calls_only";
        case ToolSupport::none:
            return "none";
    }
    return "";
}

// (content, reasoning, [(index, name, id, arguments)])
py::tuple to_tuple(const MessageDelta & delta) {
    py::list calls;
    for (const ToolCallDelta & call : delta.calls) {
        const py::object name = call.name ? py::object(to_text(*call.name)) : py::none();
        calls.append(py::make_tuple(call.index, name, to_text(call.id), to_text(call.arguments)));
    }
    return py::make_tuple(to_text(delta.content), to_text(delta.reasoning), calls);
}

}  // namespace

void register_chat_template(py::module_ & m) {
    py::class_<ChatSyntax, std::shared_ptr<ChatSyntax>>(m, "ChatSyntax",
                                                        "How an answer is read; immutable, any thread.")
        .def_property_readonly("parser", &ChatSyntax::parser, "llama.cpp's parser, as JSON.");

    py::class_<ChatParser>(m, "ChatParser", "Reads one answer while it is written; one thread at a time.")
        .def(py::init([](std::shared_ptr<ChatSyntax> syntax) { return std::make_unique<ChatParser>(std::move(syntax)); }),
             py::arg("syntax"))
        .def(
            "feed", [](ChatParser & self, const std::string & text) { return to_tuple(self.feed(text)); },
            py::arg("text"), "What the text adds: (content, reasoning, [(call's index, name, id, arguments)]).")
        .def("finish", [](ChatParser & self) { return to_tuple(self.finish()); }, "What was held back.")
        .def_property_readonly("has_tool_calls", &ChatParser::has_tool_calls)
        .def_property_readonly("n_parsed", &ChatParser::n_parsed, "Bytes parsed so far, again ones included.");

    py::class_<RenderedChat>(m, "RenderedChat", "A conversation as text, and how its answer is read; immutable.")
        .def_property_readonly("prompt", [](const RenderedChat & self) { return to_text(self.prompt); })
        .def_property_readonly("stops", [](const RenderedChat & self) { return to_texts(self.stops); })
        .def_property_readonly("generation_prompt",
                               [](const RenderedChat & self) { return to_text(self.generation_prompt); })
        .def_property_readonly("preserved", [](const RenderedChat & self) { return to_texts(self.preserved); })
        .def_property_readonly("triggers",
                               [](const RenderedChat & self) {
                                   py::list triggers;
                                   for (const CallTrigger & trigger : self.triggers) {
                                       triggers.append(py::make_tuple(trigger.is_pattern, to_text(trigger.value)));
                                   }
                                   return triggers;
                               })
        .def_property_readonly("reasoning_start",
                               [](const RenderedChat & self) { return to_text(self.reasoning_start); })
        .def_property_readonly("reasoning_end", [](const RenderedChat & self) { return to_text(self.reasoning_end); })
        .def_property_readonly("syntax", [](const RenderedChat & self) {
            return std::const_pointer_cast<ChatSyntax>(self.syntax);  // all of its methods are const
        });

    py::class_<ChatTemplate>(m, "ChatTemplate", "A chat template ready to render; immutable, any thread.")
        .def(py::init([](std::shared_ptr<Model> model, const std::string & source) {
                 const py::gil_scoped_release release;
                 return std::make_unique<ChatTemplate>(std::move(model), source);
             }),
             py::arg("model"), py::arg("source") = "",
             "The model's own template, or another. Raises BadTemplate when there is none, or it does not parse.")
        .def(
            "render",
            [](const ChatTemplate & self, const std::string & messages, const std::string & tools, bool must_call,
               bool parallel_calls, bool add_generation_prompt, bool continue_final, bool enable_thinking,
               bool extract_reasoning, const std::map<std::string, std::string> & variables) {
                const py::gil_scoped_release release;
                return self.render({messages, tools, must_call, parallel_calls, add_generation_prompt, continue_final,
                                    enable_thinking, extract_reasoning, variables});
            },
            py::arg("messages"), py::kw_only(), py::arg("tools"), py::arg("must_call"), py::arg("parallel_calls"),
            py::arg("add_generation_prompt"), py::arg("continue_final"), py::arg("enable_thinking"),
            py::arg("extract_reasoning"), py::arg("variables"),
            "Messages, tools and the template's variables are JSON. Raises BadTemplate.")
        .def_property_readonly("tool_support",
                               [](const ChatTemplate & self) { return to_word(self.tool_support()); })
        .def_property_readonly("calls_in_parallel", &ChatTemplate::calls_in_parallel);
}

}  // namespace llamaserve
