"""Trace contexts: reading what clients send, and ids that processes agree on."""

from __future__ import annotations

import hashlib
import random
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from domain.log.trace import (
    RANDOM,
    SAMPLED,
    TraceContext,
    derived_span_id,
    new_trace,
    parse_traceparent,
    trace_id_of,
)

TRACE_ID, SPAN_ID = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"
VALID = f"00-{TRACE_ID}-{SPAN_ID}-01"


def test_a_valid_header_is_read() -> None:
    context = parse_traceparent(f" {VALID}\t")
    assert context == TraceContext(trace_id=TRACE_ID, span_id=SPAN_ID, flags=SAMPLED)
    assert context.is_sampled
    assert str(context) == VALID
    assert trace_id_of(VALID) == TRACE_ID


@pytest.mark.parametrize(
    "text",
    [
        None,
        "",
        "rubbish",
        VALID.upper(),
        VALID + "-more",  # version 00 has four fields
        VALID[:-1],
        f"ff-{TRACE_ID}-{SPAN_ID}-01",
        f"00-{'0' * 32}-{SPAN_ID}-01",
        f"00-{TRACE_ID}-{'0' * 16}-01",
        f"{VALID}, {VALID}",
        VALID + "\n",
        f"X{VALID}",
        "00-" + "é" * 32 + f"-{SPAN_ID}-01",
    ],
)
def test_rubbish_names_no_trace(text: str | None) -> None:
    assert parse_traceparent(text) is None
    assert trace_id_of(text) is None


def test_a_newer_version_may_have_more_fields() -> None:
    context = parse_traceparent(f"cc-{TRACE_ID}-{SPAN_ID}-ff-what-comes")
    assert context is not None
    assert str(context) == f"00-{TRACE_ID}-{SPAN_ID}-03"


@given(st.text(max_size=80))
def test_any_text_is_read_or_refused(text: str) -> None:
    context = parse_traceparent(text)
    assert context is None or parse_traceparent(str(context)) == context


@given(sampled=st.booleans())
def test_a_new_trace_is_valid_and_its_children_are_of_it(*, sampled: bool) -> None:
    trace = new_trace(sampled=sampled)
    assert parse_traceparent(str(trace)) == trace
    assert trace.flags == RANDOM + sampled
    child = trace.new_child()
    assert (child.trace_id, child.flags) == (trace.trace_id, trace.flags)
    assert child.span_id != trace.span_id
    assert parse_traceparent(str(child)) == child


def test_a_derived_id_depends_on_its_parts_only() -> None:
    assert derived_span_id("job-1", 2) == derived_span_id("job-1", 2)
    assert derived_span_id("job-1", 2) != derived_span_id("job-1", 3)
    assert derived_span_id("job-1", 2) != derived_span_id("job-12")
    assert re.fullmatch("[0-9a-f]{16}", derived_span_id("x"))
    assert new_trace().derived("job-1", 2).span_id == derived_span_id("job-1", 2)


def test_a_derived_id_is_that_of_every_version_of_the_service() -> None:
    assert derived_span_id("job-1", 2) == hashlib.sha256(b"job-1\n2").hexdigest()[:16]


def test_a_new_trace_is_not_sampled_unless_asked_for() -> None:
    assert not new_trace().is_sampled
    assert new_trace(sampled=True).is_sampled


def test_an_id_is_never_all_zero(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(random, "getrandbits", lambda _bits: 0)
    assert parse_traceparent(str(new_trace())) == new_trace()
    assert (len(new_trace().trace_id), len(new_trace().span_id)) == (32, 16)
