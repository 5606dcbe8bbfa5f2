# cython: language_level=3, boundscheck=False, wraparound=False, auto_pickle=False, autotestdict=False
"""Loops over tokens, and over the bytes and characters of text: ``llamaserve._hot``. Documented in ``_hot.pyi``.

The twin of each is in ``tests/reference``; ``bench/hot_text.py`` and ``bench/prefix_lookup.py`` measure what it gains.
Nothing here knows llama.h, and nothing here takes 50 µs for texts of usual lengths, so the GIL is kept. One class or
function, one included file.
"""

cimport cython

include "common_prefix.pxi"
include "utf8_stream.pxi"
include "stop_matcher.pxi"
