"""A random network with gpt-oss's marks and template, through the whole engine."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import jsonschema_rs
import pytest

from domain.chat.divergence import RecordedAnswer
from domain.chat.generation import Outcome
from domain.chat.request import ChatRequest, Message, ToolCall, ToolChoice
from domain.chat.stored_answer import StoredAnswer
from domain.model.registry import ModelEntry
from domain.values import Digest, JobId, SamplingWish, StopReason, digest_of
from tests.integration.mlx.engine.test_constrained_answers import start
from tests.support.models.engine_probe import CollectingSink, finished, submit
from tests.support.models.tiny_harmony import make_tiny_harmony
from worker.engine.engine import BatchEngine
from worker.engine.mlx.model.loader import load_weights
from worker.engine.output.channel_parser import HARMONY

_POINT: dict[str, Any] = {
    "type": "object",
    "properties": {
        "kind": {"enum": ["point", "vector"]},
        "at": {"type": "integer", "minimum": 0, "maximum": 99},
    },
    "required": ["kind", "at"],
    "additionalProperties": False,
}
_TOOLS: tuple[dict[str, Any], ...] = tuple(
    {"type": "function", "function": {"name": name, "parameters": _POINT}}
    for name in ("Place", "Remove")
)


@pytest.fixture(scope="module")
def model_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tiny_harmony(tmp_path_factory.mktemp("models") / "tiny-harmony")


@pytest.fixture(scope="module")
def sink() -> CollectingSink:
    return CollectingSink()


@pytest.fixture(scope="module")
def engine(model_dir: Path, sink: CollectingSink) -> Iterator[BatchEngine]:
    engine = start(model_dir, sink)
    yield engine
    engine.close(0)


def _ask(*, seed: int = 1, max_tokens: int = 120, **more: Any) -> ChatRequest:
    return ChatRequest(
        model="any",
        messages=(Message(role="user", content="go"),),
        max_tokens=max_tokens,
        sampling=SamplingWish(temperature=1.0, seed=seed),
        **more,
    )


def _must(mode: str, name: str | None = None) -> dict[str, Any]:
    return {"tools": _TOOLS, "tool_choice": ToolChoice(mode=mode, name=name)}  # type: ignore[arg-type]  # a mode


def test_a_call_that_must_be_made_matches_its_tool_and_ends_the_answer(
    engine: BatchEngine,
) -> None:
    requests = [
        _ask(seed=seed, **_must(mode, name))
        for seed, (mode, name) in enumerate([("any", None), ("tool", "Remove")] * 3)
    ]
    handles = [submit(engine, f"must-{n}", request) for n, request in enumerate(requests)]
    for request, handle in zip(requests, handles, strict=True):
        outcome = finished(handle)
        (call,) = outcome.calls
        assert call.is_complete
        assert call.name in {"Place", "Remove"} & {request.tool_choice.name or call.name}
        jsonschema_rs.validator_for(_POINT).validate(json.loads(call.arguments))
        assert outcome.stop_reason is StopReason.END_TURN
        assert (outcome.text, outcome.thinking) == ("", "")


def test_an_answer_with_a_form_says_nothing_else(engine: BatchEngine) -> None:
    requests = [_ask(seed=seed, answer_schema=_POINT, max_tokens=300) for seed in range(8)]
    handles = [submit(engine, f"form-{n}", request) for n, request in enumerate(requests)]
    ended = 0
    for handle in handles:
        outcome = finished(handle)
        if outcome.stop_reason is StopReason.END_TURN:
            ended += 1
            jsonschema_rs.validator_for(_POINT).validate(json.loads(outcome.text))
        else:
            # This network does not know when to stop thinking.
            assert (outcome.stop_reason, outcome.text) == (StopReason.MAX_TOKENS, "")
    assert ended


def test_what_a_network_says_of_itself_shows_no_mark(engine: BatchEngine) -> None:
    requests = [_ask(seed=seed, tools=_TOOLS) for seed in range(6)]
    handles = [submit(engine, f"free-{n}", request) for n, request in enumerate(requests)]
    for handle in handles:
        outcome = finished(handle)
        told = outcome.text + outcome.thinking
        assert not any(mark in told for mark in HARMONY.markers)


def test_a_call_goes_on_the_same_from_every_item(engine: BatchEngine, sink: CollectingSink) -> None:
    request = _ask(**_must("any"))
    whole = finished(submit(engine, "call", request))
    items = sink.numbered("call")
    handles = [
        submit(engine, f"call-{cut}", request, attempt=2, emitted=items[:cut])
        for cut in range(len(items))
    ]
    for handle in handles:
        again = finished(handle)
        assert again.token_ids == whole.token_ids
        assert again.calls[0].arguments == whole.calls[0].arguments


class _Answers:
    """``SpokenAnswers`` in a dictionary."""

    def __init__(self) -> None:
        self.said: dict[str, RecordedAnswer] = {}
        self.requests: dict[Digest, ChatRequest] = {}

    def find(self, job_id: JobId) -> RecordedAnswer | None:
        return self.said.get(job_id)

    def request(self, digest: Digest) -> ChatRequest | None:
        return self.requests.get(digest)

    def keep(self, job: str, request: ChatRequest, outcome: Outcome, fingerprint: str) -> None:
        digest = digest_of(request.to_bytes())
        self.requests[digest] = request
        self.said[job] = RecordedAnswer(
            job_id=JobId(job),
            request=digest,
            fingerprint=fingerprint,
            answer=StoredAnswer.from_outcome(outcome),
        )


def test_the_next_prompt_begins_with_what_was_sampled(engine: BatchEngine, model_dir: Path) -> None:
    answers = _Answers()
    model = load_weights(ModelEntry(name="tiny", source=str(model_dir)), answers).model
    request = _ask(**_must("tool", "Place"))
    for job in ("job-1", "job-2"):
        outcome = finished(submit(engine, job, request))
        answers.keep(job, request, outcome, model.card.fingerprint)
        before = model.render(request).tokens + outcome.token_ids
        call = outcome.calls[0]
        echo = ToolCall(id=call.id, name=call.name, arguments=json.loads(call.arguments))
        messages = (
            *request.messages,
            Message(role="assistant", content="", tool_calls=(echo,), origin=job),
            Message(role="tool", content="done", tool_call_id=call.id),
        )
        request = replace(request, messages=messages)
        after = model.render(request).tokens
        assert after[: len(before)] == before
        assert len(after) > len(before)
