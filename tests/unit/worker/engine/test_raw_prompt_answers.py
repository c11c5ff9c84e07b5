"""Answers to raw prompts: all of them text, with or without the prompt before it."""

from __future__ import annotations

from typing import Any

import pytest

from domain.chat.generation import Outcome
from domain.chat.items import StreamItem, Text
from domain.chat.request import ChatRequest, RawPrompt
from domain.values import SamplingWish, StopReason
from tests.support.fakes.engine import FakeEngine
from tests.support.models.engine_probe import CollectingSink, finished, submit, text_in

_PROMPT = "Once STOP upon"
_OUTPUT = ' <think> a</think>\n<tool_call>{"name": "Bash", "arguments": {}}</tool_call> STOP b'


def _run(
    sink: CollectingSink,
    *,
    earlier: list[StreamItem] | None = None,
    stop: tuple[str, ...],
    **raw: Any,
) -> Outcome:
    request = ChatRequest(
        model="any",
        messages=(),
        raw=RawPrompt(**raw),
        max_tokens=500,
        sampling=SamplingWish(temperature=0),
        stop=stop,
    )
    with FakeEngine(sink, {_PROMPT: _OUTPUT}) as engine:
        return finished(
            submit(engine, "job-a", request, attempt=2 if earlier else 1, emitted=earlier or [])
        )


def test_nothing_is_read_as_reasoning_or_as_a_call() -> None:
    outcome = _run(CollectingSink(), stop=(), text=_PROMPT)
    assert (outcome.text, outcome.thinking, outcome.calls) == (_OUTPUT, "", ())


def test_stop_text_in_an_echoed_prompt_ends_nothing() -> None:
    outcome = _run(CollectingSink(), stop=("STOP",), text=_PROMPT, is_echoed=True)
    assert outcome.text == _PROMPT + _OUTPUT[: _OUTPUT.index("STOP")]
    assert outcome.stop_reason is StopReason.STOP_SEQUENCE
    assert outcome.usage.prompt_tokens == len(_PROMPT)
    assert outcome.usage.completion_tokens == len(_OUTPUT[: _OUTPUT.index("STOP")]) + 4


@pytest.mark.parametrize("kept", [0, 1, 2, 40])
def test_attempt_after_a_crash_emits_the_echo_once(kept: int) -> None:
    whole = CollectingSink()
    first = _run(whole, stop=("STOP",), ids=tuple(map(ord, _PROMPT)), is_echoed=True)
    # The job runner emits item 0, ``Started``.
    earlier = whole.numbered("job-a")[:kept]
    assert all(isinstance(item.body, Text) for item in earlier)
    rest = CollectingSink()
    again = _run(
        rest, earlier=earlier, stop=("STOP",), ids=tuple(map(ord, _PROMPT)), is_echoed=True
    )
    assert again.text == first.text
    assert text_in(earlier) + text_in(rest.numbered("job-a")) == first.text
