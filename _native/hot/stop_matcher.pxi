# Stop strings over a stream, by Knuth, Morris and Pratt: for each stop, how many of its characters the text ends with.
# A character costs amortised constant time for each stop, however the text is cut. The text held back is never stored:
# it equals the beginning of the stop that has come furthest.

from libc.stdlib cimport calloc, free

cdef struct Stop:
    Py_ssize_t length
    Py_ssize_t matched      # characters of it that the text ends with; below length between two calls
    Py_UCS4 *characters
    Py_ssize_t *fallback    # for each prefix, the length of its longest border: where to go on when the next one differs


cdef bint advance(Stop *stop, Py_UCS4 character) noexcept nogil:
    """Take one character of the text; whether the stop is complete with it."""
    cdef Py_ssize_t matched = stop.matched
    while matched and stop.characters[matched] != character:
        matched = stop.fallback[matched - 1]
    if stop.characters[matched] == character:
        matched += 1
    stop.matched = matched
    return matched == stop.length


cdef int fill(Stop *stop, str text) except -1:
    """Copy the text of a stop and compute its borders."""
    cdef Py_ssize_t length = len(text)
    stop.characters = <Py_UCS4 *>calloc(length, sizeof(Py_UCS4))
    stop.fallback = <Py_ssize_t *>calloc(length, sizeof(Py_ssize_t))
    if stop.characters == NULL or stop.fallback == NULL:
        raise MemoryError()
    cdef Py_ssize_t i = 0
    cdef Py_UCS4 character
    for character in text:
        stop.characters[i] = character
        i += 1
    # The stop is matched against itself, one character late: what it has then is the border.
    stop.length = length
    for i in range(1, length):
        advance(stop, stop.characters[i])
        stop.fallback[i] = stop.matched
    stop.matched = 0
    return 0


@cython.final
cdef class StopMatcher:
    cdef tuple _texts
    cdef Stop *_stops
    cdef Py_ssize_t _n_stops
    cdef Py_ssize_t _furthest   # the stop that holds back most text; -1 when none holds any
    cdef str _matched

    def __cinit__(self, stops):
        if isinstance(stops, str):
            raise TypeError("stops is one string: it must be a sequence of strings")
        self._texts = tuple(stops)
        self._furthest = -1
        for text in self._texts:
            if not isinstance(text, str):
                raise TypeError(f"a stop is {text!r}: it must be a string")
            if not text:
                raise ValueError("a stop is empty: it must have at least 1 character")
        if not self._texts:
            return
        self._stops = <Stop *>calloc(len(self._texts), sizeof(Stop))
        if self._stops == NULL:
            raise MemoryError()
        self._n_stops = len(self._texts)
        for i in range(self._n_stops):
            fill(&self._stops[i], self._texts[i])

    def __dealloc__(self):
        cdef Py_ssize_t i
        for i in range(self._n_stops):
            free(self._stops[i].characters)
            free(self._stops[i].fallback)
        free(self._stops)

    @property
    def matched(self):
        return self._matched

    def push(self, str text not None):
        if self._matched is not None:
            return ""
        if self._n_stops == 0:
            return text
        cdef str held = self._held()
        cdef Py_ssize_t position = 0
        cdef Py_ssize_t complete
        cdef Py_UCS4 character
        for character in text:
            position += 1
            complete = self._advance_all(character)
            if complete >= 0:
                self._matched = self._texts[complete]
                self._furthest = -1
                return (held + text)[: len(held) + position - len(self._matched)]
        self._furthest = self._find_furthest()
        if self._furthest < 0:
            return held + text if held else text
        return (held + text)[: len(held) + len(text) - self._stops[self._furthest].matched]

    def flush(self):
        cdef str held = self._held()
        cdef Py_ssize_t i
        for i in range(self._n_stops):
            self._stops[i].matched = 0
        self._furthest = -1
        return held

    cdef str _held(self):
        if self._furthest < 0:
            return ""
        return self._texts[self._furthest][: self._stops[self._furthest].matched]

    cdef Py_ssize_t _advance_all(self, Py_UCS4 character) noexcept nogil:
        """Take one character in every stop; the longest stop complete with it, or -1."""
        cdef Py_ssize_t complete = -1
        cdef Py_ssize_t i
        for i in range(self._n_stops):
            if advance(&self._stops[i], character) and (
                complete < 0 or self._stops[i].length > self._stops[complete].length
            ):
                complete = i
        return complete

    cdef Py_ssize_t _find_furthest(self) noexcept nogil:
        cdef Py_ssize_t furthest = -1
        cdef Py_ssize_t i
        for i in range(self._n_stops):
            if self._stops[i].matched and (
                furthest < 0 or self._stops[i].matched > self._stops[furthest].matched
            ):
                furthest = i
        return furthest
