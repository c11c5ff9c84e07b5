"""``constraint.Grammars`` by llguidance; no other module knows it.

https://github.com/guidance-ai/llguidance: the grammars are its Lark dialect with ``%json``. It
answers in microseconds for each token and computes without holding the interpreter.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Collection
from typing import Final

import structlog
from llguidance import LLMatcher, LLTokenizer

from domain.values import Digest, digest_of
from worker.engine.grammar.ports import ConstraintLost, GrammarRefused
from worker.engine.grammar.text_grammar import quoted

_log = structlog.get_logger(__name__)

#: Compiled grammars that are kept; an agent asks with the same tools again and again.
COMPILED_MAX: Final = 64
#: Schemas whose verdict is kept; some clients offer hundreds of tools.
VERDICTS_MAX: Final = 4096
#: The library writes nothing to stderr.
_SILENT: Final = 0
#: Of what it says about a grammar.
_REASON_CHARS_MAX: Final = 300


class GuidanceMatcher:
    """``constraint.Matcher``.

    Args:
        matcher: Fresh.
        vocabulary: For text.
    """

    def __init__(self, matcher: LLMatcher, vocabulary: LLTokenizer) -> None:
        self._matcher = matcher
        self._vocabulary = vocabulary

    @property
    def is_over(self) -> bool:
        """Whether nothing but the end of the turn may follow."""
        return self._matcher.is_stopped()

    def accept(self, token: int) -> bool:
        """Take a token; return whether it fits."""
        return self._matcher.consume_token(token)

    def accept_text(self, text: str) -> bool:
        """Take text, cut into tokens in the usual way."""
        return self._matcher.consume_tokens(
            self._vocabulary.tokenize_bytes(text.encode(errors="replace"), parse_special=True)
        )

    def mask(self) -> bytes:
        """Return what may come next."""
        mask = self._matcher.compute_bitmask()
        if self._matcher.is_error():
            raise ConstraintLost(self._matcher.get_error()[:_REASON_CHARS_MAX])
        return mask


class GuidanceGrammars:
    """``constraint.Grammars``. Compiled grammars are kept and copied, which takes microseconds.

    Args:
        vocabulary: Of the loaded model.
        end_ids: Tokens that end a turn.
    """

    def __init__(self, vocabulary: LLTokenizer, end_ids: frozenset[int]) -> None:
        self._vocabulary = vocabulary
        self._end_ids = end_ids
        self._lock = threading.Lock()
        self._compiled: OrderedDict[str, LLMatcher] = OrderedDict()
        self._verdicts: OrderedDict[Digest, str | None] = OrderedDict()

    @property
    def end_ids(self) -> frozenset[int]:
        """The tokens that end a turn."""
        return self._end_ids

    def tag(self, text: str) -> str:
        """Return how a grammar writes a tag: special tokens by their id, others by their text."""
        ids = self._vocabulary.tokenize_str(text, parse_special=True)
        if len(ids) == 1 and self._vocabulary.is_special_token(ids[0]):
            return f"<[{ids[0]}]>"
        return quoted(text)

    def refusal(self, grammar: str) -> str | None:
        """Return why the library cannot follow a grammar, ``None`` if it can."""
        name = digest_of(grammar.encode("utf-8", "surrogatepass"))
        with self._lock:
            if name in self._verdicts:
                self._verdicts.move_to_end(name)
                return self._verdicts[name]
        try:
            self._built(grammar)
            why = None
        except GrammarRefused as error:
            why = str(error)
        with self._lock:
            self._verdicts[name] = why
            while len(self._verdicts) > VERDICTS_MAX:
                self._verdicts.popitem(last=False)
        return why

    def matcher(self, grammar: str) -> GuidanceMatcher:
        """Return a fresh matcher.

        Raises:
            GrammarRefused: Saying why.
        """
        with self._lock:
            compiled = self._compiled.get(grammar)
            if compiled is not None:
                self._compiled.move_to_end(grammar)
        if compiled is None:
            compiled = self._compile(grammar)
        with self._lock:
            return GuidanceMatcher(compiled.deep_copy(), self._vocabulary)

    def _compile(self, grammar: str) -> LLMatcher:
        compiled = self._built(grammar)
        with self._lock:
            self._compiled[grammar] = compiled
            while len(self._compiled) > COMPILED_MAX:
                self._compiled.popitem(last=False)
        return compiled

    def _built(self, grammar: str) -> LLMatcher:
        try:
            grammar.encode()
        except UnicodeEncodeError as error:
            msg = f"half of a surrogate pair: {error.reason}"
            raise GrammarRefused(msg) from error
        built = LLMatcher(self._vocabulary, LLMatcher.grammar_from_lark(grammar), log_level=_SILENT)
        if built.is_error():
            raise GrammarRefused(_reason(built.get_error()))
        # Some, such as a schema that is nothing but itself, fail only when they are followed.
        trial = built.deep_copy()
        trial.compute_bitmask()
        if trial.is_error():
            raise GrammarRefused(_reason(trial.get_error()))
        return built


def grammars_for(tokenizer_json: str, end_ids: Collection[int]) -> GuidanceGrammars | None:
    """Return what makes matchers for a vocabulary, ``None`` if the library cannot read it.

    Takes up to a second for a large one.

    Args:
        tokenizer_json: As the tokenizers library writes it.
        end_ids: Tokens that end a turn, at least one.
    """
    try:
        vocabulary = LLTokenizer(tokenizer_json, eos_token=sorted(end_ids))
    except Exception as error:  # noqa: BLE001 - the library's own errors are plain exceptions
        _log.warning("answers_unconstrained", why=str(error)[:_REASON_CHARS_MAX])
        return None
    return GuidanceGrammars(vocabulary, frozenset(end_ids))


def _reason(error: str) -> str:
    """Return the first line, without the place in a grammar that the caller never saw."""
    line = error.strip().split("\n", 1)[0]
    return line.split("failed to compile JSON schema: ")[-1][:_REASON_CHARS_MAX]
