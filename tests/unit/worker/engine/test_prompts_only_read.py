"""Requests for no token: the prompt is computed, and the answer is empty."""

from __future__ import annotations

from dataclasses import replace

import pytest

from domain.chat.request import ChatRequest
from domain.values import StopReason
from tests.support.fakes.engine import FakeEngine
from tests.support.models.engine_probe import CollectingSink, ask, finished, submit

_READ = ask("hi", max_tokens=0)
_REQUESTS = {
    "text": _READ,
    "reasoning": replace(_READ, thinking=True),
    "log-probabilities": replace(_READ, logprobs=1),
}


@pytest.mark.parametrize("request_", _REQUESTS.values(), ids=_REQUESTS)
@pytest.mark.parametrize("output", ["Hello", ""])
def test_request_for_no_token_reads_its_prompt_and_emits_nothing(
    request_: ChatRequest, output: str
) -> None:
    sink = CollectingSink()
    with FakeEngine(sink, {"hi": output}) as engine:
        outcome = finished(submit(engine, "job-a", request_))
        read = engine.figures().counts.prompt_tokens
    assert (outcome.failure, outcome.stop_reason) == (None, StopReason.MAX_TOKENS)
    assert (outcome.text, outcome.thinking, outcome.calls) == ("", "", ())
    assert (outcome.token_ids, outcome.usage.completion_tokens, outcome.order) == ((), 0, ())
    assert read == outcome.usage.prompt_tokens > 0
    assert sink.numbered("job-a") == []
