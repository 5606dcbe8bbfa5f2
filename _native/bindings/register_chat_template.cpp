// ChatTemplate: rendering releases the GIL.
#include <pybind11/stl.h>

#include "chat_template.h"
#include "register.h"
#include "text.h"

namespace py = pybind11;

namespace llamaserve {

void register_chat_template(py::module_ & m) {
    py::class_<ChatTemplate>(m, "ChatTemplate", "A chat template ready to render; immutable, any thread.")
        .def(py::init([](std::shared_ptr<Model> model) {
                 const py::gil_scoped_release release;
                 return std::make_unique<ChatTemplate>(std::move(model));
             }),
             py::arg("model"), "The model's own template. Raises BadTemplate when it has none, or does not parse.")
        .def(
            "render",
            [](const ChatTemplate & self, const std::string & messages_json, bool add_generation_prompt) {
                RenderedChat rendered;
                {
                    const py::gil_scoped_release release;
                    rendered = self.render(messages_json, add_generation_prompt);
                }
                py::list stops;
                for (const std::string & stop : rendered.stops) {
                    stops.append(to_text(stop));
                }
                return py::make_tuple(to_text(rendered.prompt), stops);
            },
            py::arg("messages_json"), py::kw_only(), py::arg("add_generation_prompt"),
            "(prompt, stop strings) for a JSON array of OpenAI messages. Raises BadTemplate.");
}

}  // namespace llamaserve
