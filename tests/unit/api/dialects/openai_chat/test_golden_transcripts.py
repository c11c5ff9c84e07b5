"""Streams of several answers as they go over the wire, held byte by byte.

After a change that is meant, write them anew by running this file with ``SEMANTIC_GOLDEN=write``
and read the difference.
"""

from __future__ import annotations

import pytest

from api.dialects.openai_chat.completions import (
    CompletionEncoder,
    CompletionEnvelope,
    CompletionKind,
)
from api.dialects.openai_chat.parse import ChatKind
from api.dialects.openai_completions import TextKind
from api.generation import ChoiceItem
from api.http.sse import encode
from domain.chat.items import (
    Body,
    Finished,
    Started,
    StreamItem,
    Text,
    Thinking,
    ToolInput,
    ToolStart,
)
from domain.errors import EngineFailure
from domain.values import JobId, StopReason, Usage
from tests.support.golden.streams import FIXTURES, assert_golden

GOLDEN = FIXTURES / "openai"
_JOBS = tuple(JobId(f"job-{number:032x}") for number in (1, 2))
_USAGE = Usage(prompt_tokens=12, cached_tokens=4, completion_tokens=3)


def _end(reason: StopReason) -> Finished:
    return Finished(stop_reason=reason, usage=_USAGE)


#: Items of the two jobs in the order of their arrival.
_ITEMS: list[tuple[int, Body]] = [
    (0, Started(prompt_tokens=12, cached_tokens=4)),
    (1, Started(prompt_tokens=12, cached_tokens=8)),
    (1, Thinking(text="hm", ids=(1,))),
    (0, Text(text="Hello", ids=(2,))),
    (1, Text(text=" wörld\n", ids=(3,))),
    (0, _end(StopReason.END_TURN)),
    (1, ToolStart(id="toolu_1", name="Bash", ids=(4,))),
    (1, ToolInput(fragment="{}", ids=(5,))),
    (1, _end(StopReason.MAX_TOKENS)),
]


def _encoder(kind: type[CompletionKind]) -> CompletionEncoder:
    envelope = CompletionEnvelope(
        kind=kind, jobs=_JOBS, model="m", created=1_767_225_600, answers_each=2
    )
    return CompletionEncoder(envelope, include_usage=True, request_id="req-1")


@pytest.mark.parametrize(("kind", "name"), [(ChatKind, "chat"), (TextKind, "text")])
def test_answers_mix_and_the_end_comes_once(kind: type[CompletionKind], name: str) -> None:
    encoder = _encoder(kind)
    parts = encoder.open()
    for n, (choice, body) in enumerate(_ITEMS):
        parts += encoder.item(ChoiceItem(choice, StreamItem(n=n, attempt=1, body=body)))
    assert_golden(encode(parts), GOLDEN / f"{name}_two_answers.sse")


@pytest.mark.parametrize(("kind", "name"), [(ChatKind, "chat"), (TextKind, "text")])
def test_failure_of_one_ends_all(kind: type[CompletionKind], name: str) -> None:
    encoder = _encoder(kind)
    parts = encoder.open()
    for n, (choice, body) in enumerate(_ITEMS[:6]):
        parts += encoder.item(ChoiceItem(choice, StreamItem(n=n, attempt=1, body=body)))
    parts += encoder.fail(EngineFailure("the model broke"))
    assert_golden(encode(parts), GOLDEN / f"{name}_one_failed.sse")
