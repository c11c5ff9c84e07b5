"""One answer of gpt-oss through the engine and out of the two doors, held byte by byte.

After a change that is meant, write the streams anew by running this file with
``SEMANTIC_GOLDEN=write`` and read the difference.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from anthropic.types import RawMessageStreamEvent
from openai.types.chat import ChatCompletionChunk
from pydantic import TypeAdapter

from api.dialects.anthropic.encode import AnthropicEncoder, MessageForm
from api.dialects.openai_chat.completions import CompletionEncoder, CompletionEnvelope
from api.dialects.openai_chat.parse import ChatKind
from api.generation import ChoiceItem
from api.http.sse import Part, encode
from domain.chat.items import Finished, Started, StreamItem, ToolEnd, ToolStart
from domain.values import JobId, StopReason, Usage
from tests.support.clients.sse import events_in
from tests.support.fakes.engine import FakeEngine
from tests.support.golden.streams import FIXTURES, assert_golden
from tests.support.models.engine_probe import CollectingSink, ask, finished, submit
from tests.support.models.tool_calls import JOB, TOOLS, items_of
from worker.engine.output.channel_parser import HARMONY, ChannelParser
from worker.engine.output.detokenizer import ByteDetokenizer
from worker.engine.output.tool_calls.reader import CallRules, ToolFormat
from worker.engine.text_assembler import TextAssembler

GOLDEN = FIXTURES / "harmony"
#: As such a model cuts it; the mark of its end, ``<|call|>``, is never handed on.
_TOKENS = (
    *("<|channel|>", "analysis", "<|message|>", "It", " wants", " a", " list", ".", "<|end|>"),
    *("<|start|>", "assistant", "<|channel|>", "comment", "ary", "<|message|>", "I", " look", "."),
    *("<|end|>", "<|start|>", "assistant", "<|channel|>", "comment", "ary", " to", "=functions"),
    *(".B", "ash", " ", "<|constrain|>", "json", "<|message|>", '{"', "command", '":', ' "ls'),
    *(" <|", "end", '|>"', "}"),
)
_USAGE = Usage(prompt_tokens=1200, cached_tokens=1100, completion_tokens=len(_TOKENS))
_EVENT: TypeAdapter[Any] = TypeAdapter(RawMessageStreamEvent)


def _items() -> list[StreamItem]:
    rules = CallRules(format=ToolFormat(start="", end=""), tools=TOOLS)
    table = [token.encode() for token in _TOKENS]
    assembler = TextAssembler(
        ByteDetokenizer(table), ChannelParser(HARMONY, (), calls=rules), job_id=JOB
    )
    bodies = [
        Started(prompt_tokens=1200, cached_tokens=1100),
        *items_of(assembler, range(len(_TOKENS))),
        Finished(stop_reason=StopReason.END_TURN, usage=_USAGE, stop_sequence=None),
    ]
    return [StreamItem(n=n, attempt=1, body=body) for n, body in enumerate(bodies)]


def _parts(door: str) -> list[Part]:
    job = JobId(JOB)
    if door == "chat":
        envelope = CompletionEnvelope(kind=ChatKind, jobs=(job,), model="m", created=17)
        chat = CompletionEncoder(envelope, include_usage=True, request_id="req-1")
        choice_items = (ChoiceItem(0, item) for item in _items())
        return [*chat.open(), *(part for item in choice_items for part in chat.item(item))]
    encoder = AnthropicEncoder(
        MessageForm(model="m", thinking="whole"), job_id=job, request_id="req_1"
    )
    return [*encoder.open(), *(part for item in _items() for part in encoder.item(item))]


@pytest.mark.parametrize("door", ["anthropic", "chat"])
def test_transcript_is_the_golden_one(door: str) -> None:
    events = encode(_parts(door))
    assert_golden(events, GOLDEN / f"{door}.sse")
    for event in events_in(events):
        if event.data != "[DONE]":
            if door == "chat":
                ChatCompletionChunk.model_validate_json(event.data, strict=True)
            else:
                _EVENT.validate_json(event.data, strict=True)


_OUTPUT = "".join(_TOKENS)


@pytest.fixture
def sink() -> CollectingSink:
    return CollectingSink()


@pytest.fixture
def engine(sink: CollectingSink) -> Iterator[FakeEngine]:
    with FakeEngine(sink, {"go": _OUTPUT}, context=4000, channel_format=HARMONY) as engine:
        yield engine


def test_an_answer_in_frames_is_items_and_an_outcome(
    engine: FakeEngine, sink: CollectingSink
) -> None:
    outcome = finished(submit(engine, "job-a", ask("go", max_tokens=900, tools=TOOLS)))
    assert (outcome.thinking, outcome.text) == ("It wants a list.", "I look.")
    assert [call.arguments for call in outcome.calls] == ['{"command": "ls <|end|>"}']
    assert outcome.calls[0].is_complete
    assert outcome.stop_reason is StopReason.END_TURN
    assert len(outcome.token_ids) == len(_OUTPUT)
    kinds = [type(item.body) for item in sink.numbered("job-a")]
    assert kinds.count(ToolStart) == kinds.count(ToolEnd) == 1


def test_attempt_after_a_crash_emits_the_rest_of_the_messages(
    engine: FakeEngine, sink: CollectingSink
) -> None:
    request = ask("go", max_tokens=900, tools=TOOLS)
    whole = finished(submit(engine, "job-a", request))
    items = sink.numbered("job-a")
    assert len(items) > 20
    for k in range(0, len(items) + 1, 5):
        sink.items.clear()
        again = finished(submit(engine, "job-a", request, attempt=2, emitted=items[:k]))
        rest = [StreamItem(n=i.n, attempt=1, body=i.body) for i in sink.numbered("job-a")]
        assert [*items[:k], *rest] == items
        assert (again.calls, again.text) == (whole.calls, whole.text)
        assert again.token_hash == whole.token_hash


def test_call_cut_by_the_limit_has_no_end(engine: FakeEngine, sink: CollectingSink) -> None:
    request = ask("go", max_tokens=_OUTPUT.index("ls") + 1, tools=TOOLS)
    outcome = finished(submit(engine, "job-a", request))
    assert outcome.stop_reason is StopReason.MAX_TOKENS
    assert outcome.calls[0].arguments == '{"command": "l'
    assert not outcome.calls[0].is_complete
    assert not any(isinstance(item.body, ToolEnd) for item in sink.numbered("job-a"))
