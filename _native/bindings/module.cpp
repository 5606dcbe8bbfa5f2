// The table of contents of llamaserve._engine.
#include "register.h"

#include "build-info.h"
#include "llama.h"
#include "llama_log.h"

PYBIND11_MODULE(_engine, m) {
    m.doc() = "llama.cpp behind the engine seam of llamaserve.engine.port.";
    llamaserve::capture_llama_log();
    llama_backend_init();

    m.attr("llama_cpp_version") = std::string(llama_version()) + " (" + llama_commit() + ")";
    m.def("system_info", [] { return std::string(llama_print_system_info()); },
          "The CPU features and backends llama.cpp was built with and found.");

    llamaserve::register_errors(m);
    llamaserve::register_model(m);
    llamaserve::register_chat_template(m);
    llamaserve::register_gguf(m);
    llamaserve::register_step(m);
    llamaserve::register_engine(m);
}
