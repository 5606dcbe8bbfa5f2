# Incremental UTF-8. CPython's own decoder does the work: it stops before a character that is not complete yet and says
# how far it came, so the stream keeps 3 bytes at most between two calls.

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_GET_SIZE

cdef extern from "Python.h":
    object PyUnicode_DecodeUTF8Stateful(const char *data, Py_ssize_t size, const char *errors, Py_ssize_t *consumed)


@cython.final
cdef class Utf8Stream:
    cdef bytes _incomplete

    def __cinit__(self):
        self._incomplete = b""

    def push(self, bytes data not None):
        cdef Py_ssize_t consumed = 0
        if PyBytes_GET_SIZE(self._incomplete):
            data = self._incomplete + data
        cdef Py_ssize_t size = PyBytes_GET_SIZE(data)
        text = PyUnicode_DecodeUTF8Stateful(PyBytes_AS_STRING(data), size, b"replace", &consumed)
        self._incomplete = data[consumed:] if consumed < size else b""
        return text

    def flush(self):
        text = self._incomplete.decode("utf-8", "replace")
        self._incomplete = b""
        return text
