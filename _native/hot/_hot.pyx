# cython: language_level=3, boundscheck=False, wraparound=False, auto_pickle=False, autotestdict=False
"""Loops over the bytes and characters of generated text: ``llamaserve._hot``. Documented in ``_hot.pyi``.

The twin of each class is in ``tests/reference``; what it gains is in ``bench/results``. Nothing here knows llama.h, and
nothing here takes 50 µs, so the GIL is kept. One class, one included file.
"""

cimport cython

include "utf8_stream.pxi"
include "stop_matcher.pxi"
