// C++ exceptions become their twins of llamaserve.errors.
#include "error.h"
#include "register.h"
#include "text.h"

namespace py = pybind11;

namespace llamaserve {
namespace {

void raise_twin(const char * name, const py::args & arguments) {
    const py::object type = py::module_::import("llamaserve.errors").attr(name);
    PyErr_SetObject(type.ptr(), type(*arguments).ptr());
}

}  // namespace

void register_errors(py::module_ &) {
    py::register_exception_translator([](std::exception_ptr pointer) {
        try {
            if (pointer) {
                std::rethrow_exception(pointer);
            }
        } catch (const BadTokenError & error) {
            raise_twin("BadToken", py::make_tuple(error.token, error.n_vocab));
        } catch (const BadSamplerError & error) {
            raise_twin("BadSampler", py::make_tuple(error.param, error.value, error.limit));
        } catch (const BadTextError & error) {
            raise_twin("BadRequest", py::make_tuple(to_text(error.what()), "prompt"));
        } catch (const TemplateError & error) {
            raise_twin("BadTemplate", py::make_tuple(to_text(error.what())));
        } catch (const ModelLoadError & error) {
            raise_twin("ModelLoad", py::make_tuple(to_text(error.what())));
        } catch (const EngineDownError & error) {
            raise_twin("EngineDown", py::make_tuple(to_text(error.what())));
        } catch (const EngineError & error) {
            raise_twin("EngineError", py::make_tuple(to_text(error.what())));
        }
    });
}

}  // namespace llamaserve
