# How far two runs of tokens are equal. memcmp compares blocks at the speed of memory but does not say where they differ,
# so only the block that does is looked through.

from cpython.buffer cimport PyBUF_FORMAT, PyBUF_ND, PyBuffer_Release, PyObject_GetBuffer
from libc.stdint cimport int32_t
from libc.string cimport memcmp

cdef enum:
    BLOCK = 64  # tokens; a call of memcmp costs less than looking through half of it


cdef Py_ssize_t n_equal(const int32_t *a, const int32_t *b, Py_ssize_t n_tokens) noexcept nogil:
    cdef Py_ssize_t i = 0
    while n_tokens - i >= BLOCK and memcmp(&a[i], &b[i], BLOCK * sizeof(int32_t)) == 0:
        i += BLOCK
    while i < n_tokens and a[i] == b[i]:
        i += 1
    return i


cdef int take_tokens(object tokens, str name, Py_ssize_t start, Py_buffer *view) except -1:
    """Borrow the memory of the tokens; to be released unless this raises."""
    PyObject_GetBuffer(tokens, view, PyBUF_ND | PyBUF_FORMAT)
    cdef bint is_int = view.format != NULL and view.format[0] in (b"i", b"l") and view.format[1] == 0
    try:
        if view.ndim != 1 or view.itemsize != sizeof(int32_t) or not is_int:
            raise TypeError(
                f"{name} has {view.ndim} dimensions of items of type "
                f"{(view.format if view.format != NULL else b'B').decode()!r}: it must have one, of int32"
            )
        if start < 0 or start > view.shape[0]:
            raise ValueError(f"{name}_start is {start}: it must be 0 to {view.shape[0]}, the length of {name}")
    except:
        PyBuffer_Release(view)
        raise
    return 0


def common_prefix(a, b, Py_ssize_t a_start=0, Py_ssize_t b_start=0, limit=None):
    cdef Py_buffer a_view, b_view
    cdef Py_ssize_t n_limit = 0 if limit is None else limit
    if n_limit < 0:
        raise ValueError(f"limit is {limit}: it must be 0 or more")
    take_tokens(a, "a", a_start, &a_view)
    try:
        take_tokens(b, "b", b_start, &b_view)
    except:
        PyBuffer_Release(&a_view)
        raise
    cdef Py_ssize_t n_tokens = min(a_view.shape[0] - a_start, b_view.shape[0] - b_start)
    if limit is not None:
        n_tokens = min(n_tokens, n_limit)
    n_tokens = n_equal(<const int32_t *>a_view.buf + a_start, <const int32_t *>b_view.buf + b_start, n_tokens)
    PyBuffer_Release(&a_view)
    PyBuffer_Release(&b_view)
    return n_tokens
