// Bytes that should be UTF-8 but come from files and libraries: what is not becomes U+FFFD instead of an exception.
#pragma once

#include <pybind11/pybind11.h>

#include <string>

namespace llamaserve {

inline pybind11::str to_text(const std::string & bytes) {
    PyObject * text = PyUnicode_DecodeUTF8(bytes.data(), (Py_ssize_t) bytes.size(), "replace");
    if (text == nullptr) {
        throw pybind11::error_already_set();
    }
    return pybind11::reinterpret_steal<pybind11::str>(text);
}

}  // namespace llamaserve
