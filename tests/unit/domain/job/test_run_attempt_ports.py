"""What an attempt asks of the scheduler and of the backlog."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest

from domain.chat.generation import NO_CLAIM, Claim, GenerationTask, PreparedPrompt
from domain.chat.items import Body, Finished, Started, StreamItem
from domain.errors import GenerationCancelled
from domain.events.job import JobCancelRequested
from domain.job.commit import commit
from domain.job.fair_scheduler import QueueTurn, TurnRequest
from domain.job.run_attempt import RunResult
from domain.job.state import DEADLINE
from domain.values import Priority, StopReason, Usage
from tests.support.builders.job_world import JobWorld
from tests.unit.domain.job.test_run_attempt import start_attempt


@pytest.fixture
def world() -> Iterator[JobWorld]:
    with JobWorld({"hi": "A scripted answer."}) as world:
        yield world


def test_job_whose_time_passes_while_it_waits_for_its_turn_expires(world: JobWorld) -> None:
    job_id = world.accept(command={"deadline": "2026-01-01T00:00:05.000000Z"}).job_id

    class LateTurns:
        def request_turn(self, job: TurnRequest) -> QueueTurn:
            world.clock.advance(5)
            return world.turns.request_turn(job)

    assert replace(world.runner, turns=LateTurns()).run(job_id) is RunResult.ENDED
    assert world.types(job_id) == ["JobSubmitted", "JobCancelRequested", "JobExpired"]


def test_job_that_expires_while_its_prompt_is_prepared_does_not_start(
    world: JobWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    job_id = world.accept(command={"deadline": "2026-01-01T00:00:05.000000Z"}).job_id

    submit = world.engine.submit

    def late(task: GenerationTask) -> Any:
        commit(job_id, JobCancelRequested(reason=DEADLINE), log=world.log, ids=world.ids)
        return submit(task)

    monkeypatch.setattr(world.engine, "submit", late)
    assert world.run(job_id) is RunResult.ENDED
    assert world.types(job_id) == ["JobSubmitted", "JobCancelRequested", "JobExpired"]
    assert [item.n for item in world.items(job_id)] == [0]


@pytest.mark.parametrize(
    ("agent", "owner", "line"), [("a", "mine", "a"), (None, "mine", "key=mine"), (None, None, None)]
)
def test_turn_is_asked_for_in_the_line_of_the_job(
    world: JobWorld, agent: str | None, owner: str | None, line: str | None
) -> None:
    asked: list[TurnRequest] = []

    class Turns:
        def request_turn(self, job: TurnRequest) -> QueueTurn:
            asked.append(job)
            return world.turns.request_turn(job)

    job_id = world.accept(command={"agent": agent, "owner": owner}).job_id
    runner = replace(world.runner, turns=Turns())
    assert runner.run(job_id) is RunResult.ENDED
    assert asked == [TurnRequest(id=job_id, line=line, priority=Priority.INTERACTIVE)]


def test_a_cancellation_ends_the_preparation(
    world: JobWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The preparation may compile a grammar; it goes on only while its client is there."""
    job_id = world.accept(command={"owner": "mine"}).job_id
    claims: list[Claim] = []

    def compile_until_cancelled(*_: Any, claim: Claim = NO_CLAIM, **__: Any) -> PreparedPrompt:
        claims.append(claim)
        assert not claim.is_cancelled()
        world.cancel(job_id)
        world.nudge(job_id)
        assert claim.is_cancelled()
        raise GenerationCancelled("cancelled while it was prepared")

    monkeypatch.setattr(world.engine, "prepare", compile_until_cancelled)
    assert world.run(job_id) is RunResult.ENDED
    assert world.types(job_id)[-1] == "JobCancelled"
    assert "AttemptStarted" not in world.types(job_id)
    assert [claim.owner for claim in claims] == ["mine"]


def test_a_cancellation_that_the_log_lacks_runs_the_job_again(
    world: JobWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    job_id = world.submit()

    def stray(*_: Any, **__: Any) -> PreparedPrompt:
        raise GenerationCancelled("not in the log")

    monkeypatch.setattr(world.engine, "prepare", stray)
    assert world.run(job_id) is RunResult.REQUEUE
    monkeypatch.undo()
    assert world.run(job_id) is RunResult.ENDED
    assert world.text(job_id) == "A scripted answer."


def test_end_that_a_broker_restored_is_dropped_with_the_attempts_before_it(world: JobWorld) -> None:
    """The items of an answer that a retry had deleted are back, with their end."""
    job_id = world.submit()
    start_attempt(world, job_id)
    bodies: tuple[Body, ...] = (
        Started(prompt_tokens=2, cached_tokens=0),
        Finished(stop_reason=StopReason.END_TURN, usage=Usage()),
    )
    items = [StreamItem(n=n, attempt=1, body=body) for n, body in enumerate(bodies)]
    world.broker.items.publish([(job_id, item) for item in items])
    assert world.run(job_id) is RunResult.ENDED
    assert world.broker.items.refused == {job_id: 1}
    assert world.text(job_id) == "A scripted answer."


def test_answer_that_begins_anew_drops_the_items_of_the_attempts_before(world: JobWorld) -> None:
    job_id = world.submit()
    start_attempt(world, job_id, fingerprint="of another model")
    assert world.run(job_id) is RunResult.ENDED
    assert world.broker.items.refused == {job_id: 1}


def test_first_attempt_drops_nothing(world: JobWorld) -> None:
    assert world.run(world.submit()) is RunResult.ENDED
    assert world.broker.items.refused == {}
