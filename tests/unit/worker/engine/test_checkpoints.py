"""The engine hands the positions of messages to the runner: checkpoints are made there."""

from __future__ import annotations

from dataclasses import replace

import pytest

from domain.chat.request import Message
from tests.support.fakes.engine import FakeEngine
from tests.support.models.engine_probe import CollectingSink, ask, finished, submit_prompt


@pytest.mark.parametrize(
    ("starts", "checkpoints"),
    [
        pytest.param((4, 6), (4,), id="only the first message"),
        pytest.param((), (), id="none is known"),
        pytest.param((0,), (), id="nothing before it"),
        pytest.param((7,), (), id="the last token, where each sequence pauses anyway"),
    ],
)
def test_checkpoint_is_the_end_of_the_system_prompt(
    starts: tuple[int, ...], checkpoints: tuple[int, ...]
) -> None:
    with FakeEngine(CollectingSink()) as engine:
        prompt = replace(engine.prepare(ask("8 tokens")), message_starts=starts)
        finished(submit_prompt(engine, "job-a", prompt))
        assert [one.checkpoints for one in engine.runner.admissions] == [checkpoints]


def test_prepared_prompt_has_the_rendered_positions() -> None:
    request = ask("go")
    ruled = replace(request, messages=(Message(role="system", content="x"), *request.messages))
    with FakeEngine(CollectingSink()) as engine:
        assert engine.prepare(ruled).message_starts == (1,)
        assert engine.prepare(request).message_starts == ()


def test_the_last_message_reaches_the_runner() -> None:
    with FakeEngine(CollectingSink()) as engine:
        prompt = replace(engine.prepare(ask("8 tokens")), last_message=5)
        finished(submit_prompt(engine, "job-a", prompt))
        assert [one.last_message for one in engine.runner.admissions] == [5]
