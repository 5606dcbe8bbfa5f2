// A row of logits out of a Python buffer, for the bindings that exist for tests.
#pragma once

#include <pybind11/pybind11.h>

#include <cstdint>
#include <string>

namespace llamaserve {

// Throws ValueError for another size or type.
inline const float * logits_of(const pybind11::buffer_info & info, int32_t n_vocab) {
    if (info.format != pybind11::format_descriptor<float>::format() || info.ndim != 1 || info.size != n_vocab ||
        info.strides[0] != (pybind11::ssize_t) sizeof(float)) {
        throw pybind11::value_error("logits must be " + std::to_string(n_vocab) + " floats of 32 bits in a row");
    }
    return static_cast<const float *>(info.ptr);
}

}  // namespace llamaserve
