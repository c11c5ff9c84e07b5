"""Answers to raw prompts: all of them text, with or without the prompt before it."""

from __future__ import annotations

from typing import Any

import pytest

from domain.chat.generation import Outcome
from domain.chat.items import StreamItem, Text, logprobs_of
from domain.chat.request import ChatRequest, RawPrompt
from domain.errors import InvalidRequest
from domain.values import SamplingWish, StopReason
from tests.support.fakes.engine import FakeEngine, likelihood_of
from tests.support.models.engine_probe import CollectingSink, finished, submit, text_in
from worker.engine.preparation import SCORED_TOKENS_MAX

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


def _scored(
    sink: CollectingSink,
    *,
    max_tokens: int,
    output: str = _OUTPUT,
    earlier: list[StreamItem] | None = None,
) -> Outcome:
    request = ChatRequest(
        model="any",
        messages=(),
        raw=RawPrompt(text=_PROMPT, is_echoed=True),
        max_tokens=max_tokens,
        sampling=SamplingWish(temperature=0),
        logprobs=2,
    )
    with FakeEngine(sink, {_PROMPT: output}) as engine:
        return finished(
            submit(engine, "job-a", request, attempt=2 if earlier else 1, emitted=earlier or [])
        )


@pytest.mark.parametrize(
    ("max_tokens", "output", "last"),
    [
        (0, _OUTPUT, []),
        (1, _OUTPUT, [0]),
        (3, _OUTPUT, [0, 1, 2]),
        (1, "", [0]),
        (9, "ab", [0, 1, 2]),
    ],
)
def test_echo_has_the_log_probabilities_of_each_token_that_was_read_or_drawn(
    max_tokens: int, output: str, last: list[int]
) -> None:
    sink = CollectingSink()
    outcome = _scored(sink, max_tokens=max_tokens, output=output)
    assert outcome.text == _PROMPT + output[:max_tokens]
    values = outcome.logprobs or ()
    # The token that ends the answer is the last one.
    assert [value.index for value in values] == [*range(-len(_PROMPT), 0), *last]
    scored = [likelihood_of(ord(char), place, 2) for place, char in enumerate(_PROMPT)]
    assert [value.logprob for value in values[1 : len(_PROMPT)]] == [
        one.logprob for one in scored[1:]
    ]
    assert "".join(value.token.decode() for value in values[: len(_PROMPT)]) == _PROMPT
    assert all(len(value.top) == 2 for value in values[1:])
    emitted = [one for item in sink.numbered("job-a") for one in logprobs_of(item.body)]
    assert {value.index for value in emitted} == {value.index for value in values}


@pytest.mark.parametrize("kept", [0, 1, 2, 40])
def test_attempt_after_a_crash_has_the_values_of_the_whole_echo(kept: int) -> None:
    whole = CollectingSink()
    first = _scored(whole, max_tokens=20)
    rest = CollectingSink()
    again = _scored(rest, max_tokens=20, earlier=whole.numbered("job-a")[:kept])
    assert (again.text, again.logprobs) == (first.text, first.logprobs)


def test_prompt_is_scored_from_its_first_token_on_and_only_by_the_attempt_that_emits_it() -> None:
    whole = CollectingSink()
    _scored(whole, max_tokens=5)
    request = ChatRequest(
        model="any",
        messages=(),
        raw=RawPrompt(text=_PROMPT, is_echoed=True),
        max_tokens=5,
        sampling=SamplingWish(temperature=0),
        logprobs=0,
    )
    with FakeEngine(CollectingSink(), {_PROMPT: _OUTPUT}) as engine:
        finished(submit(engine, "job-a", request))
        earlier = whole.numbered("job-a")[:2]
        finished(submit(engine, "job-b", request, attempt=2, emitted=earlier))
        first, second = engine.runner.admissions
    assert (first.is_scored, first.is_cold, first.is_alone) == (True, True, True)
    assert (second.is_scored, second.is_cold, second.is_alone) == (False, False, False)


def test_prompt_that_is_too_long_for_its_values_is_refused() -> None:
    request = ChatRequest(
        model="any",
        messages=(),
        raw=RawPrompt(text="a" * (SCORED_TOKENS_MAX + 1), is_echoed=True),
        max_tokens=0,
        sampling=SamplingWish(temperature=0),
        logprobs=0,
    )
    with (
        FakeEngine(CollectingSink(), {}, context=2 * SCORED_TOKENS_MAX) as engine,
        pytest.raises(InvalidRequest, match="at most 16384 tokens") as refusal,
    ):
        engine.prepare(request)
    assert refusal.value.field == "logprobs"
