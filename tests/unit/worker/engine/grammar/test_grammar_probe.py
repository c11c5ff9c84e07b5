"""Grammars that cost too much: what they take of the worker, of other keys, and after a cancel."""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any

import psutil
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from domain.chat.generation import NO_CLAIM, Claim
from domain.errors import GenerationCancelled
from domain.values import Owner
from tests.support.models.byte_vocabulary import ENDS, TOKENIZER
from tests.support.polling import wait_until
from worker.engine.grammar import guidance
from worker.engine.grammar.grammar_probe import CPU_S_MAX, GRAMMAR_BYTES_MAX
from worker.engine.grammar.guidance import REQUEST_CPU_S_MAX, GuidanceGrammars, grammars_for
from worker.engine.grammar.ports import GrammarRefused
from worker.engine.grammar.text_grammar import SchemaRules

_EXACT = {"whitespace_flexible": False}
_ANN, _BOB = Claim(owner=Owner("ann")), Claim(owner=Owner("bob"))
#: What one grammar may leave in the worker beside what the cache counts; as the issue of it asks.
_WORKER_BYTES_MAX = 200 << 20


def _grammar(schema: Any) -> str:
    return f"start: answer\nanswer: %json {json.dumps({**schema, 'x-guidance': _EXACT})}"


def _multiple(number: int) -> str:
    return _grammar({"type": "integer", "multipleOf": number})


_PATTERNS = _grammar(
    {"type": "string", "allOf": [{"pattern": f"a.{{{k}}}b"} for k in range(1, 23)]}
)


@pytest.fixture
def grammars() -> Iterator[GuidanceGrammars]:
    made = grammars_for(TOKENIZER.to_str(), ENDS)
    assert made is not None
    yield made
    made._probe._end()


def _probes() -> list[psutil.Process]:
    children = psutil.Process().children()
    return [
        one
        for one in children
        if one.status() != psutil.STATUS_ZOMBIE and "grammar_probe" in " ".join(one.cmdline())
    ]


def _children() -> list[psutil.Process]:
    return [
        fork
        for probe in _probes()
        for fork in probe.children()
        if fork.status() != psutil.STATUS_ZOMBIE
    ]


def _rss() -> int:
    return int(psutil.Process().memory_info().rss)


@pytest.mark.parametrize("grammar", [_multiple(999_983), _multiple(99_999_989), _PATTERNS])
def test_a_costly_grammar_ends_in_its_own_process(grammars: GuidanceGrammars, grammar: str) -> None:
    grammars.of(NO_CLAIM).matchers('start: "a"')
    before = _rss()
    requested = grammars.of(NO_CLAIM)
    assert "to compile" in (requested.refusal(grammar) or "")
    with pytest.raises(GrammarRefused, match="to compile"):
        requested.matchers(grammar)
    assert _rss() - before < 16 << 20
    assert grammars.of(NO_CLAIM).matchers('start: "a"')().mask()


def test_a_refusal_is_remembered_and_the_time_of_a_request_has_an_end(
    grammars: GuidanceGrammars, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(guidance, "REQUEST_CPU_S_MAX", 1e-9)
    requested, other = grammars.of(NO_CLAIM), grammars.of(NO_CLAIM)
    assert requested.refusal('start: "a"') is None
    assert "the grammars of the request" in (requested.refusal('start: "b"') or "")
    assert requested.refusal('start: "a"') is None
    assert other.refusal('start: "b"') is None
    refused = grammars.of(NO_CLAIM).refusal("start: (")
    assert refused is not None
    grammars._probe._end()
    assert requested.refusal("start: (") == refused


def test_a_cancelled_request_ends_its_compilation(grammars: GuidanceGrammars) -> None:
    cancelled = threading.Event()
    claim = Claim(owner=Owner("ann"), is_cancelled=cancelled.is_set)
    waiting, first = _started(grammars, claim, _multiple(99_999_989)), threading.Event()
    wait_until(lambda: bool(_children()))
    second = _started(grammars, claim, _multiple(99_999_971), first)
    wait_until(first.is_set)
    cancelled.set()
    for thread in (waiting, second):
        with pytest.raises(GenerationCancelled):
            thread()
    wait_until(lambda: not _children())


def test_another_key_compiles_beside_and_the_same_key_waits(grammars: GuidanceGrammars) -> None:
    cancelled = threading.Event()
    held = Claim(owner=_ANN.owner, is_cancelled=cancelled.is_set)
    waiting = _started(grammars, held, _multiple(99_999_989))
    (fork,) = wait_until(_children)
    fork.suspend()
    assert grammars.of(_BOB).matchers('start: "b"')().mask()
    wait_until(_children, lambda children: children == [fork], what="the end of the other fork")
    begun, own = threading.Event(), threading.Event()
    behind = _started(
        grammars, Claim(owner=_ANN.owner, is_cancelled=own.is_set), "start: /a/", begun
    )
    wait_until(begun.is_set)
    assert _children() == [fork]
    own.set()
    with pytest.raises(GenerationCancelled):
        behind()
    fork.resume()
    cancelled.set()
    with pytest.raises(GenerationCancelled):
        waiting()


def test_the_process_that_ended_is_started_again(grammars: GuidanceGrammars) -> None:
    others = set(_probes())
    assert grammars.of(NO_CLAIM).refusal('start: "a"') is None
    (probe,) = set(_probes()) - others
    probe.kill()
    wait_until(lambda: probe.status() == psutil.STATUS_ZOMBIE)
    assert grammars.of(NO_CLAIM).refusal('start: "b"') is None


def test_the_cache_is_bounded_in_bytes(
    grammars: GuidanceGrammars, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = _multiple(10_007)
    made = grammars.of(NO_CLAIM).matchers(first)
    size = grammars.kept_bytes
    assert 0 < size <= GRAMMAR_BYTES_MAX
    assert grammars.of(NO_CLAIM).matchers(first) is made
    monkeypatch.setattr(guidance, "CACHE_BYTES_MAX", size)
    grammars.of(NO_CLAIM).matchers(_multiple(10_009))
    assert grammars.kept_bytes <= size
    assert made().mask()
    assert grammars.of(NO_CLAIM).matchers(first) is not made


_NUMBERS = st.one_of(
    st.integers(-(10**20), 10**20), st.sampled_from([0.01, 1e300, 5e-324, 999_983, 2**31, 7919])
)
_COUNTS = st.sampled_from([0, 1, 7, 300, 65_536, 10**9, 2**63])
_PATTERN = st.builds(
    "{0}.{{{1}}}{2}".format,
    st.sampled_from(["a", "(a|b)*a", "^((x{1,50}){2,90}y){3,80}", "[^b]*"]),
    st.integers(0, 400),
    st.sampled_from(["b", "(c|cc){40}", "$"]),
)
_LEAVES = st.fixed_dictionaries(
    {},
    optional={
        "type": st.sampled_from(["integer", "number", "string", "array", "object"]),
        "multipleOf": _NUMBERS,
        "minimum": _NUMBERS,
        "exclusiveMaximum": _NUMBERS,
        "minLength": _COUNTS,
        "maxLength": _COUNTS,
        "pattern": _PATTERN,
        "format": st.sampled_from(["email", "date-time", "uri", "uuid", "regex"]),
        "minItems": _COUNTS,
        "maxItems": _COUNTS,
        "minProperties": _COUNTS,
        "maxProperties": _COUNTS,
        "uniqueItems": st.booleans(),
        "const": _NUMBERS,
        "enum": st.lists(_NUMBERS, min_size=1, max_size=40),
        "required": st.lists(st.sampled_from("abcd"), max_size=3),
    },
)


def _within(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    several = st.lists(inner, min_size=1, max_size=9)
    more = {
        "allOf": several,
        "anyOf": several,
        "oneOf": several,
        "not": inner,
        "if": inner,
        "then": inner,
        "items": inner,
        "prefixItems": several,
        "contains": inner,
        "properties": st.dictionaries(st.sampled_from("abcd"), inner, max_size=4),
        "patternProperties": st.dictionaries(_PATTERN, inner, max_size=4),
        "additionalProperties": inner,
        "propertyNames": inner,
        "dependentSchemas": st.dictionaries(st.sampled_from("ab"), inner, max_size=2),
        "$defs": st.dictionaries(st.sampled_from("ab"), inner, max_size=2),
        "$ref": st.sampled_from(["#", "#/$defs/a", "#/$defs/b"]),
    }
    one = [st.fixed_dictionaries({key: value}) for key, value in more.items()]
    return st.builds(lambda leaf, parts: {**leaf, **parts}, _LEAVES, st.one_of(one))


_SCHEMAS = st.recursive(_LEAVES, _within, max_leaves=24)
_GRAMMARS = grammars_for(TOKENIZER.to_str(), ENDS)


@given(schema=_SCHEMAS)
@settings(max_examples=60, suppress_health_check=[HealthCheck.too_slow])
def test_no_schema_takes_much_of_the_worker(schema: dict[str, Any]) -> None:
    assert _GRAMMARS is not None
    grammars, before = _GRAMMARS.of(NO_CLAIM), _rss()
    own = os.times()
    rule, _ = SchemaRules(grammars.refusal).schema_rule(schema)
    with suppress(GrammarRefused):
        grammars.matchers(f"start: answer\nanswer: {rule}")().mask()
    spent = os.times()
    assert spent.user + spent.system - own.user - own.system <= CPU_S_MAX + REQUEST_CPU_S_MAX
    assert _rss() - before <= _WORKER_BYTES_MAX
    assert _GRAMMARS.kept_bytes <= guidance.CACHE_BYTES_MAX


def _started(
    grammars: GuidanceGrammars,
    claim: Claim,
    grammar: str,
    begun: threading.Event | None = None,
) -> Callable[[], object]:
    """Compile a grammar on a thread; return what waits for its result."""
    outcome: list[object] = []

    def is_cancelled() -> bool:
        if begun is not None:
            begun.set()
        return claim.is_cancelled()

    def run() -> None:
        asked = Claim(owner=claim.owner, is_cancelled=is_cancelled)
        try:
            outcome.append(grammars.of(asked).refusal(grammar))
        except GenerationCancelled as error:
            outcome.append(error)

    thread = threading.Thread(target=run)
    thread.start()

    def result() -> object:
        thread.join()
        if isinstance(outcome[0], GenerationCancelled):
            raise outcome[0]
        return outcome[0]

    return result
