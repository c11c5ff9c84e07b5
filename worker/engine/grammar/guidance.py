"""The adapter to llguidance, which compiles and follows grammars. Only this module imports it.

https://github.com/guidance-ai/llguidance: the grammars are its Lark dialect with ``%json``. It
computes a mask in microseconds and releases the GIL meanwhile.
"""

from __future__ import annotations

import re
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

#: Compiled grammars in the cache; an agent sends the same tools with each request.
COMPILED_MAX: Final = 64
#: Grammars whose refusal (or acceptance) is cached; some clients offer hundreds of tools.
REFUSALS_MAX: Final = 4096
#: Log level at which the library writes nothing to stderr.
_SILENT: Final = 0
#: Most characters of the library's message in an error.
_REASON_CHARS_MAX: Final = 300
#: How the library begins an error: the position in the generated grammar.
_POSITION: Final = re.compile(r"^at \d+\(\d+\): ")
#: How it begins the error of a pattern. The lines behind it repeat the pattern; one has the cause.
_REGEX_ERROR: Final = "regex parse error"
_DETAIL: Final = "error: "


class GuidanceMatcher:
    """``Matcher`` by llguidance.

    Args:
        matcher: A fresh one.
        vocabulary: Tokenises text.
    """

    def __init__(self, matcher: LLMatcher, vocabulary: LLTokenizer) -> None:
        self._matcher = matcher
        self._vocabulary = vocabulary

    @property
    def is_over(self) -> bool:
        """Whether only the end of the turn may follow."""
        return self._matcher.is_stopped()

    def accept(self, token: int) -> bool:
        """Accept a token; return whether it matches."""
        return self._matcher.consume_token(token)

    def accept_text(self, text: str) -> bool:
        """Accept text, tokenised as in a prompt; return whether it matches."""
        return self._matcher.consume_tokens(
            self._vocabulary.tokenize_bytes(text.encode(errors="replace"), parse_special=True)
        )

    def mask(self) -> bytes:
        """Return the mask of allowed next tokens."""
        mask = self._matcher.compute_bitmask()
        if self._matcher.is_error():
            raise ConstraintLost(self._matcher.get_error()[:_REASON_CHARS_MAX])
        return mask


class GuidanceGrammars:
    """``Grammars`` by llguidance. Caches compiled grammars; to copy one takes microseconds.

    Args:
        vocabulary: The vocabulary of the loaded model.
        end_ids: Tokens that end a turn.
    """

    def __init__(self, vocabulary: LLTokenizer, end_ids: frozenset[int]) -> None:
        self._vocabulary = vocabulary
        self._end_ids = end_ids
        self._lock = threading.Lock()
        self._compiled: OrderedDict[str, LLMatcher] = OrderedDict()
        self._refusals: OrderedDict[Digest, str | None] = OrderedDict()

    @property
    def end_ids(self) -> frozenset[int]:
        """The tokens that end a turn."""
        return self._end_ids

    def tag(self, text: str) -> str:
        """Return a tag as a grammar writes it: a special token by its id, other tags as text."""
        ids = self._vocabulary.tokenize_str(text, parse_special=True)
        if len(ids) == 1 and self._vocabulary.is_special_token(ids[0]):
            return f"<[{ids[0]}]>"
        return quoted(text)

    def refusal(self, grammar: str) -> str | None:
        """Return why the library cannot follow a grammar, ``None`` if it can."""
        name = digest_of(grammar.encode("utf-8", "surrogatepass"))
        with self._lock:
            if name in self._refusals:
                self._refusals.move_to_end(name)
                return self._refusals[name]
        try:
            self._build(grammar)
            reason = None
        except GrammarRefused as error:
            reason = str(error)
        with self._lock:
            self._refusals[name] = reason
            while len(self._refusals) > REFUSALS_MAX:
                self._refusals.popitem(last=False)
        return reason

    def matcher(self, grammar: str) -> GuidanceMatcher:
        """Return a fresh matcher.

        Raises:
            GrammarRefused: The library cannot compile or follow the grammar.
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
        compiled = self._build(grammar)
        with self._lock:
            self._compiled[grammar] = compiled
            while len(self._compiled) > COMPILED_MAX:
                self._compiled.popitem(last=False)
        return compiled

    def _build(self, grammar: str) -> LLMatcher:
        try:
            grammar.encode()
        except UnicodeEncodeError as error:
            msg = f"half of a surrogate pair: {error.reason}"
            raise GrammarRefused(msg) from error
        built = LLMatcher(self._vocabulary, LLMatcher.grammar_from_lark(grammar), log_level=_SILENT)
        if built.is_error():
            raise GrammarRefused(_reason(built.get_error()))
        # Some grammars, such as a schema that only refers to itself, fail at the first mask.
        trial = built.deep_copy()
        trial.compute_bitmask()
        if trial.is_error():
            raise GrammarRefused(_reason(trial.get_error()))
        return built


def grammars_for(tokenizer_json: str, end_ids: Collection[int]) -> GuidanceGrammars | None:
    """Return the grammars of a vocabulary, ``None`` if the library cannot read the vocabulary.

    Takes up to a second for a large vocabulary.

    Args:
        tokenizer_json: The tokenizer, as the ``tokenizers`` library serialises it.
        end_ids: Tokens that end a turn, at least one.
    """
    try:
        vocabulary = LLTokenizer(tokenizer_json, eos_token=sorted(end_ids))
    except Exception as error:  # noqa: BLE001 - the library's own errors are plain exceptions
        _log.warning("answers_unconstrained", reason=str(error)[:_REASON_CHARS_MAX])
        return None
    return GuidanceGrammars(vocabulary, frozenset(end_ids))


def _reason(error: str) -> str:
    """Return the cause that an error of the library states, without its view of the grammar."""
    cause = error.strip().split("failed to compile JSON schema: ")[-1]
    lines = _POSITION.sub("", cause).split("\n")
    if lines[0].startswith(_REGEX_ERROR):
        detail = next((line for line in lines if line.startswith(_DETAIL)), _DETAIL)
        stated = detail.removeprefix(_DETAIL).strip() or "it cannot be parsed"
        return f"a pattern is not a valid regular expression: {stated}"[:_REASON_CHARS_MAX]
    return lines[0][:_REASON_CHARS_MAX]
