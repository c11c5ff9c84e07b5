"""The adapter to llguidance, which compiles and follows grammars.

https://github.com/guidance-ai/llguidance: the grammars are its Lark dialect with ``%json``. It
computes a mask in microseconds and releases the GIL meanwhile.
"""

from __future__ import annotations

import re
import threading
from collections import OrderedDict
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Final, TypeVar

import structlog
from llguidance import LLMatcher, LLTokenizer

from domain.chat.generation import Claim
from domain.errors import GenerationCancelled
from domain.values import Digest, Owner, digest_of
from worker.engine.grammar.closing import Closing, EndSearch
from worker.engine.grammar.grammar_probe import GrammarProbe, TrialVerdict, compiled
from worker.engine.grammar.ports import ConstraintLost, GrammarRefused
from worker.engine.grammar.text_grammar import quoted

_log = structlog.get_logger(__name__)

#: Compiled grammars in the cache; an agent sends the same tools with each request.
COMPILED_MAX: Final = 64
#: Memory of these together; those in use by answers are not counted.
CACHE_BYTES_MAX: Final = 128 << 20
#: Grammars whose refusal (or acceptance) is cached; some clients offer hundreds of tools.
VERDICTS_MAX: Final = 4096
#: CPU seconds that the grammars of one request may take together; what they allow is widened then.
REQUEST_CPU_S_MAX: Final = 5.0
_NO_TIME: Final = f"the grammars of the request take more than {REQUEST_CPU_S_MAX:g} s to compile"
#: Seconds between two looks at the cancellation of a request that waits.
_LOOK_S: Final = 0.05
#: Most characters of the library's message in an error.
_REASON_CHARS_MAX: Final = 300
#: How the library begins an error: the position in the generated grammar.
_POSITION: Final = re.compile(r"^at \d+\(\d+\): ")
#: How it begins the error of a pattern. The lines behind it repeat the pattern; one has the cause.
_REGEX_ERROR: Final = "regex parse error"
_DETAIL: Final = "error: "

T = TypeVar("T")


class GuidanceMatcher:
    """Follows one grammar from its beginning to its end.

    Args:
        matcher: A fresh one.

    Attributes:
        closing: Keeps the text within its limit of tokens, if it has one.
    """

    def __init__(self, matcher: LLMatcher, search: EndSearch) -> None:
        self._matcher = matcher
        self._search = search
        self.closing: Closing | None = None

    def limit(self, left: int) -> Closing:
        """Let the text open nothing that it cannot close with ``left`` tokens."""
        self.closing = Closing(self._matcher, self._search, left)
        return self.closing

    @property
    def is_over(self) -> bool:
        """Whether only the end of the turn may follow."""
        return self._matcher.is_stopped()

    def accept(self, token: int) -> bool:
        """Accept a token; return whether it matches. After a mismatch no token matches."""
        if self.closing is not None:
            self.closing.accept(token)
        return self._matcher.consume_token(token)

    def copied(self) -> GuidanceMatcher:
        """Return one that continues from the same tokens by itself.

        A roll-back would cost less. But after one, rows of the text that was taken back can stay in
        the library's parser (1.9.1), and a mask allows what the grammar does not.
        """
        other = GuidanceMatcher(self._matcher.deep_copy(), self._search)
        if self.closing is not None:
            other.closing = self.closing.copied(other._matcher)
        return other

    def accept_text(self, text: str) -> bool:
        """Accept text that the model did not sample, such as the end of the prompt."""
        return self._matcher.consume_tokens(
            self._search.vocabulary.tokenize_bytes(
                text.encode(errors="replace"), parse_special=True
            )
        )

    def mask(self) -> bytes:
        """Return the mask of allowed next tokens, including end tokens where the grammar may end.

        Raises:
            ConstraintLost: The grammar exceeds the limits of the library.
        """
        mask = self._matcher.compute_bitmask()
        if self._matcher.is_error():
            raise ConstraintLost(self._matcher.get_error()[:_REASON_CHARS_MAX])
        return mask


@dataclass(frozen=True, slots=True)
class _Compiled:
    """A compiled grammar; copies share what it compiled to."""

    matcher: LLMatcher
    size_bytes: int
    search: EndSearch

    def __call__(self) -> GuidanceMatcher:
        """Return a fresh matcher; takes microseconds."""
        return GuidanceMatcher(self.matcher.deep_copy(), self.search)


class GuidanceGrammars:
    """The compiled grammars of one model, and the refused ones. Safe to use from any thread."""

    def __init__(
        self, vocabulary: LLTokenizer, end_ids: frozenset[int], probe: GrammarProbe
    ) -> None:
        self.vocabulary = vocabulary
        self.end_ids = end_ids
        self._probe = probe
        self._search = EndSearch(vocabulary)
        self._lock = threading.Lock()
        self._compiled: OrderedDict[Digest, _Compiled] = OrderedDict()
        self._verdicts: OrderedDict[Digest, TrialVerdict] = OrderedDict()
        #: By owner; there are as many as keys.
        self._turns: dict[Owner | None, threading.Lock] = {}

    def of(self, claim: Claim) -> RequestGrammars:
        """Return the grammars of one request."""
        return RequestGrammars(self, claim)

    @property
    def kept_bytes(self) -> int:
        """Memory of the compiled grammars in the cache."""
        with self._lock:
            return sum(one.size_bytes for one in self._compiled.values())

    def verdict(self, grammar: str, claim: Claim, left_s: float) -> tuple[TrialVerdict, float]:
        """Return whether a grammar may be compiled, and the CPU seconds that this took.

        A refusal is remembered, except that of a request whose time is over.

        Raises:
            GenerationCancelled: The request was cancelled.
        """
        name = _name(grammar)
        if (known := self._recent(self._verdicts, name)) is not None:
            return known, 0.0
        if left_s <= 0:
            return TrialVerdict(refusal=_NO_TIME), 0.0
        with self._turn(claim):
            if (known := self._recent(self._verdicts, name)) is not None:
                return known, 0.0
            try:
                grammar.encode()
            except UnicodeEncodeError as error:
                return TrialVerdict(refusal=f"half of a surrogate pair: {error.reason}"), 0.0
            found = self._probe.examine(grammar, claim.is_cancelled)
            if found.refusal is not None:
                found = replace(found, refusal=_reason(found.refusal))
            with self._lock:
                self._verdicts[name] = found
                while len(self._verdicts) > VERDICTS_MAX:
                    self._verdicts.popitem(last=False)
        return found, found.cpu_s

    def compiled(self, grammar: str, claim: Claim, size_bytes: int) -> _Compiled:
        """Return a compiled grammar that has a favourable verdict.

        Raises:
            GenerationCancelled: The request was cancelled.
        """
        name = _name(grammar)
        if (found := self._recent(self._compiled, name)) is not None:
            return found
        with self._turn(claim):
            if (found := self._recent(self._compiled, name)) is not None:
                return found
            made = _Compiled(compiled(self.vocabulary, grammar), size_bytes, self._search)
            with self._lock:
                self._compiled[name] = made
                total = sum(one.size_bytes for one in self._compiled.values())
                while total > CACHE_BYTES_MAX or len(self._compiled) > COMPILED_MAX:
                    total -= self._compiled.popitem(last=False)[1].size_bytes
            return made

    def _recent(self, kept: OrderedDict[Digest, T], name: Digest) -> T | None:
        """Return what is kept under a name, which counts as used."""
        with self._lock:
            if name in kept:
                kept.move_to_end(name)
            return kept.get(name)

    @contextmanager
    def _turn(self, claim: Claim) -> Iterator[None]:
        """Wait until no other request of the same key compiles a grammar."""
        with self._lock:
            turn = self._turns.setdefault(claim.owner, threading.Lock())
        while not turn.acquire(timeout=_LOOK_S):
            if claim.is_cancelled():
                raise GenerationCancelled("cancelled before its grammar was compiled")
        try:
            yield
        finally:
            turn.release()


class RequestGrammars:
    """The grammars of one request, with a limit on the time that all of them take together."""

    def __init__(self, library: GuidanceGrammars, claim: Claim) -> None:
        self._library = library
        self._claim = claim
        self._left_s = REQUEST_CPU_S_MAX

    @property
    def end_ids(self) -> frozenset[int]:
        """The tokens that end a turn."""
        return self._library.end_ids

    def tag(self, text: str) -> str:
        """Return a tag as a grammar writes it: a special token by its id, other tags as text."""
        vocabulary = self._library.vocabulary
        ids = vocabulary.tokenize_str(text, parse_special=True)
        if len(ids) == 1 and vocabulary.is_special_token(ids[0]):
            return f"<[{ids[0]}]>"
        return quoted(text)

    def refusal(self, grammar: str) -> str | None:
        """Return why the library cannot follow a grammar, ``None`` if it can."""
        return self._verdict(grammar).refusal

    def matchers(self, grammar: str) -> Callable[[], GuidanceMatcher]:
        """Return what makes fresh matchers of a grammar, without compiling it again.

        Args:
            grammar: In the library's Lark dialect.

        Raises:
            GrammarRefused: The library cannot compile or follow the grammar.
            GenerationCancelled: The request was cancelled.
        """
        verdict = self._verdict(grammar)
        if verdict.refusal is not None:
            raise GrammarRefused(verdict.refusal)
        return self._library.compiled(grammar, self._claim, verdict.size_bytes)

    def _verdict(self, grammar: str) -> TrialVerdict:
        verdict, cpu_s = self._library.verdict(grammar, self._claim, self._left_s)
        self._left_s -= cpu_s
        return verdict


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
    probe = GrammarProbe(tokenizer_json, end_ids)
    return GuidanceGrammars(vocabulary, frozenset(end_ids), probe)


def _name(grammar: str) -> Digest:
    return digest_of(grammar.encode("utf-8", "surrogatepass"))


def _reason(error: str) -> str:
    """Return the cause that an error of the library states, without its view of the grammar."""
    cause = error.strip().split("failed to compile JSON schema: ")[-1]
    lines = _POSITION.sub("", cause).split("\n")
    if lines[0].startswith(_REGEX_ERROR):
        detail = next((line for line in lines if line.startswith(_DETAIL)), _DETAIL)
        stated = detail.removeprefix(_DETAIL).strip() or "it cannot be parsed"
        return f"a pattern is not a valid regular expression: {stated}"[:_REASON_CHARS_MAX]
    return lines[0][:_REASON_CHARS_MAX]
