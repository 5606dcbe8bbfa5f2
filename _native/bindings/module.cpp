// The table of contents of llamaserve._engine.
#include "register.h"

#include "llama.h"
#include "llama_log.h"
#include "text.h"

namespace py = pybind11;

PYBIND11_MODULE(_engine, m) {
    m.doc() = "llama.cpp behind the engine seam of llamaserve.engine.port.";
    llamaserve::capture_llama_log();
    llama_backend_init();

    m.def("take_llama_log", [] {
              py::list lines;
              for (const std::string & line : llamaserve::take_llama_log()) {
                  lines.append(llamaserve::to_text(line));
              }
              return lines;
          },
          "What llama.cpp warned of since the last call, oldest first.");

    llamaserve::register_errors(m);
    llamaserve::register_model(m);
    llamaserve::register_chat_template(m);
    llamaserve::register_gguf(m);
    llamaserve::register_sampler(m);
    llamaserve::register_references(m);
    llamaserve::register_saved_state(m);
    llamaserve::register_step(m);
    llamaserve::register_engine(m);
}
