// One function for each bound type; module.cpp calls them in order. Bindings convert and hold or release the GIL, they
// decide nothing.
#pragma once

#include <pybind11/pybind11.h>

namespace llamaserve {

void register_errors(pybind11::module_ & m);
void register_model(pybind11::module_ & m);
void register_chat_template(pybind11::module_ & m);
void register_gguf(pybind11::module_ & m);
void register_sampler(pybind11::module_ & m);
void register_references(pybind11::module_ & m);
void register_saved_state(pybind11::module_ & m);
void register_step(pybind11::module_ & m);
void register_engine(pybind11::module_ & m);

}  // namespace llamaserve
