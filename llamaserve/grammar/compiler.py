"""Compiles restrictions, keeps those used last, and gives up on what takes too long. Any thread; blocks, so no event
loop's.

llguidance bounds what it does itself, by ``LIMITS``, and frees the GIL. Compiling still happens on threads of its own,
few of them, so that whoever waits is answered in some seconds whatever happens (``compilation``).
"""

from __future__ import annotations

import functools
import os
import threading
import time
from collections import OrderedDict

from llguidance import LLMatcher, LLParserLimits

from llamaserve.constraint import MaskFiller, TokenConstraint
from llamaserve.engine.port import Vocabulary
from llamaserve.errors import BadGrammar, EngineDown, GrammarFailed
from llamaserve.grammar.compilation import Compilation, TimeLeft, TooSlow
from llamaserve.grammar.compile_threads import CompileThreads
from llamaserve.grammar.filler import ParallelFiller
from llamaserve.grammar.json_schema import place_of_fault, read_schema
from llamaserve.grammar.lazy import LazyMatcher, Triggers
from llamaserve.grammar.matcher import GrammarMatcher, reason
from llamaserve.grammar.schema_parts import Schema, json_path
from llamaserve.grammar.sources import grammar_of, schema_grammar
from llamaserve.grammar.spec import GrammarKind, GrammarSpec
from llamaserve.grammar.tokens import GrammarTokens, grammar_tokens, mask_bytes

CACHED_GRAMMARS = 64
REMEMBERED_SLOW = 64
"""Restrictions that took too long, not to be tried again."""
PLACE_TIMEOUT_S = 0.3
"""To find out where in a schema a fault is."""
_LEFT_TO_ANSWER_S = 0.1
"""Of a run's time, so that who waits is told what was found."""
_MASK_CORES = 4
"""Fewer cores have better things to do than masks side by side."""
_MOST_MASK_THREADS = 8

LIMITS = LLParserLimits(
    initial_lexer_fuel=500_000,
    step_lexer_fuel=100_000,
    step_max_items=50_000,
    max_lexer_states=50_000,
    max_grammar_size=50_000,
    verbose_errors=False,
)
"""Of one grammar: about 10 ms of a step at most, and 100 MB."""


class CompiledGrammar:
    """A restriction, ready to begin: a Constraint."""

    def __init__(self, spec: GrammarSpec, matcher: LLMatcher, tokens: GrammarTokens, filler: MaskFiller | None) -> None:
        self._spec = spec
        self._matcher = matcher
        self._tokens = tokens
        self._filler = filler
        self._triggers = Triggers.of(spec.triggers)

    def begin(self) -> TokenConstraint:
        """For a new answer; takes microseconds."""
        if self._spec.triggers or self._spec.after:
            return LazyMatcher(self._spec, self._triggers, self._tokens, self._begin)
        return self._begin()

    def _begin(self) -> GrammarMatcher:
        return GrammarMatcher(self._matcher.deep_copy(), self._tokens, self._filler)


class GrammarCompiler:
    """Restrictions for the texts of one model. Nothing is built before the first is asked for."""

    def __init__(self, vocab: Vocabulary) -> None:
        self._vocab = vocab
        self._lock = threading.Lock()
        self._tokens: GrammarTokens | None = None
        self._filler: MaskFiller | None = None
        self._threads: CompileThreads | None = None
        self._is_closed = False
        self._cache: OrderedDict[GrammarSpec, CompiledGrammar] = OrderedDict()
        self._running: dict[GrammarSpec, Compilation[CompiledGrammar]] = {}
        """What somebody waits for."""
        self._too_slow: OrderedDict[GrammarSpec, None] = OrderedDict()

    def compile(self, spec: GrammarSpec) -> CompiledGrammar:
        """A restriction, from the cache if it was asked for lately. The first call for a model reads its vocabulary,
        which may take seconds.

        Raises BadGrammar, with the place in a schema where it is known; CompilerBusy when others' take all the time;
        EngineDown after ``close``.
        """
        tokens = self._ready()
        with self._lock:
            cached = self._cache.get(spec)
            if cached is not None:
                self._cache.move_to_end(spec)
                return cached
            if spec in self._too_slow:
                raise TooSlow
            compilation = self._joined(spec, tokens)
        try:
            return compilation.wait()
        except TooSlow:
            self._give_up_on(spec)
            raise
        finally:
            with self._lock:
                if compilation.leave():
                    self._forget(spec, compilation)

    def _joined(self, spec: GrammarSpec, tokens: GrammarTokens) -> Compilation[CompiledGrammar]:
        """The compilation that runs or waits for a thread, or a new one. Under the lock."""
        if self._threads is None:
            raise EngineDown("the engine was shut down")
        running = self._running.get(spec)
        compilation = running or Compilation(functools.partial(_compile, spec, tokens, self._filler))
        compilation.join()
        if running is None:
            self._running[spec] = compilation
            compilation.begin(self._threads, functools.partial(self._take, spec, compilation))
        return compilation

    def _take(
        self, spec: GrammarSpec, compilation: Compilation[CompiledGrammar], compiled: CompiledGrammar | None
    ) -> None:
        """A compilation has ended; what came of it is kept, if anybody waits yet or not."""
        with self._lock:
            self._forget(spec, compilation)
            if compiled is None or self._is_closed:
                return
            self._too_slow.pop(spec, None)  # it is there now, and the machine may only have been busy
            self._cache[spec] = compiled
            if len(self._cache) > CACHED_GRAMMARS:
                self._cache.popitem(last=False)

    def _give_up_on(self, spec: GrammarSpec) -> None:
        """It goes on until it ends by itself, and is in the cache then."""
        with self._lock:
            if spec in self._too_slow or self._threads is None:
                return
            self._too_slow[spec] = None
            if len(self._too_slow) > REMEMBERED_SLOW:
                self._too_slow.popitem(last=False)
            self._threads.replace()

    def _forget(self, spec: GrammarSpec, compilation: Compilation[CompiledGrammar]) -> None:
        if self._running.get(spec) is compilation:
            del self._running[spec]

    def close(self) -> None:
        """Compile nothing more. May be called twice."""
        with self._lock:
            self._is_closed = True
            threads, self._threads = self._threads, None
            self._cache.clear()
        if threads is not None:
            threads.close()

    def _ready(self) -> GrammarTokens:
        """The vocabulary, read by the first who wants it; others wait."""
        with self._lock:
            if self._is_closed:
                raise EngineDown("the engine was shut down")
            if self._tokens is None:
                self._tokens = grammar_tokens(self._vocab)
                self._filler = _filler(self._tokens)
                self._threads = CompileThreads()
            return self._tokens


def _filler(tokens: GrammarTokens) -> MaskFiller | None:
    n_cores = os.cpu_count() or 1
    if n_cores < _MASK_CORES:
        return None
    return ParallelFiller(min(n_cores // 2, _MOST_MASK_THREADS), mask_bytes(tokens.tokenizer.vocab_size))


def _compile(
    spec: GrammarSpec, tokens: GrammarTokens, filler: MaskFiller | None, time_left: TimeLeft
) -> CompiledGrammar:
    matcher = LLMatcher(tokens.tokenizer, grammar_of(spec, tokens), log_level=0, limits=LIMITS)
    if matcher.is_error():
        raise _refusal(spec, reason(matcher), tokens, time_left)
    # A grammar without any text, or too large for its first step, is found here and not in the middle of an answer.
    try:
        _feed_prefix(matcher, spec.prefix, tokens)
        GrammarMatcher(matcher.deep_copy(), tokens).mask()
    except GrammarFailed as error:
        raise BadGrammar(str(error)) from error
    return CompiledGrammar(spec, matcher, tokens, filler)


def _feed_prefix(matcher: LLMatcher, prefix: str, tokens: GrammarTokens) -> None:
    taker = GrammarMatcher(matcher, tokens)
    for text, token in tokens.special.split(prefix):
        if token is None:
            taker.feed(text.encode())
        else:
            taker.accept(token)


def _refusal(spec: GrammarSpec, message: str, tokens: GrammarTokens, time_left: TimeLeft) -> BadGrammar:
    """What is wrong, and where in a schema as far as there is time to find that."""
    if spec.content is not None:  # the text around it is ours
        inner = LLMatcher(tokens.tokenizer, grammar_of(spec.content, tokens), log_level=0, limits=LIMITS)
        return _refusal(spec.content, reason(inner) if inner.is_error() else message, tokens, time_left)
    if spec.kind is not GrammarKind.JSON_SCHEMA:
        return BadGrammar(message)
    ends_at = time.monotonic() + min(PLACE_TIMEOUT_S, time_left() - _LEFT_TO_ANSWER_S)

    def failure(schema: Schema) -> str | None:
        matcher = LLMatcher(tokens.tokenizer, schema_grammar(schema), log_level=0, limits=LIMITS)
        return reason(matcher) if matcher.is_error() else None

    def has_time() -> bool:
        return time.monotonic() < ends_at and time_left() > 0

    where = json_path(place_of_fault(read_schema(spec.source), message, failure, has_time))
    return BadGrammar(f"{message} (at {where})" if where else message, where or None)
