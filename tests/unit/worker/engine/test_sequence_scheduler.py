"""Turns of contexts that do not fit together, interactive before batch work, and what is reported.

Agents whose contexts are 50 tokens long use a scripted runner with memory for two of them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from collections.abc import Sequence as Many
from typing import Any, cast

from hypothesis import given, settings
from hypothesis import strategies as st

from domain.chat.generation import GenerationTask, PreparedPrompt
from domain.chat.items import Progress
from domain.values import JobId, Priority, Sampling, WaitingFor
from tests.support.fakes.memory_runner import SmallMemoryRunner
from worker.engine.ports import Admission, CachedPrefix
from worker.engine.scheduling.waiting_queue import PASSES_MAX
from worker.engine.sequence import Handle, Sequence, SequenceTimes
from worker.engine.sequence_scheduler import (
    PREEMPTION_PAUSE_S,
    PREEMPTIONS_MAX,
    REPORT_S,
    SequenceScheduler,
)

PROMPT_TOKENS = 40
ANSWER = "abcdefgh"
#: Of a prompt, its answer and the end token.
CONTEXT_TOKENS = PROMPT_TOKENS + len(ANSWER) + 1
STEP_S = 0.01
TURNS = 6


class World:
    """A scheduler, its runner and what became of the sequences.

    Attributes:
        joined: Names of the sequences that joined the batch, in order; again after a preemption.
        finished: Names of those that ended, in order.
        reports: The progress of each, in order.
    """

    def __init__(
        self,
        *,
        contexts: float = 2,
        places: int = 8,
        cached_prefix: Callable[[Many[int]], CachedPrefix] | None = None,
    ) -> None:
        memory_tokens = int(contexts * (CONTEXT_TOKENS + 20))
        self.runner = SmallMemoryRunner(memory_tokens=memory_tokens)
        self.runner.load()
        self.now = 100.0
        self.joined: list[str] = []
        self.finished: list[str] = []
        self.answers: dict[str, str] = {}
        self.reports: dict[str, list[Progress]] = {}
        self.failures: list[Exception] = []
        self.scheduler = SequenceScheduler(
            places=places,
            window_s=0.0,
            cached_prefix=cached_prefix or self.runner.cached_prefix,
            on_progress=lambda one, progress: self._reports_of(one).append(progress),
            on_failure=lambda _, error: self.failures.append(error),
        )
        self._arrivals = 0

    def submit(
        self,
        name: str,
        prompt: str | None = None,
        *,
        priority: Priority = Priority.INTERACTIVE,
        answer: str = ANSWER,
        attempt: int = 1,
    ) -> Sequence:
        """Submit a prompt, by default one of this name's own."""
        prompt = name[0] * PROMPT_TOKENS if prompt is None else prompt
        self.runner.answers[prompt] = answer
        tokens = tuple(map(ord, prompt))
        prepared = PreparedPrompt(
            tokens=tokens, cached_tokens=0, cache_source="none", max_tokens=99, sampling=Sampling()
        )
        self._arrivals += 1
        sequence = Sequence(
            task=GenerationTask(
                job_id=JobId(name),
                attempt=attempt,
                prompt=prepared,
                emitted=(),
                first_item=1,
                stop=(),
                priority=priority,
            ),
            assembler=cast("Any", None),
            handle=Handle(lambda: None, lambda: None),
            times=SequenceTimes(self.now),
            admission=Admission(
                tokens=tokens,
                first_index=0,
                max_new_tokens=99,
                sampling=Sampling(),
                label=name,
                arrival=self._arrivals,
                priority=priority,
            ),
            context_length=1000,
        )
        self.scheduler.add(sequence)
        return sequence

    def step(self) -> list[str]:
        """Admit, compute a step, and return the names of the sequences that ended."""
        self.now += STEP_S
        before = set(self.scheduler.running)
        self.scheduler.admit(self.runner, self.now)
        assert self.runner.used_tokens <= self.runner.memory_tokens
        running = self.scheduler.running
        self.joined += [running[uid].task.job_id for uid in running.keys() - before]
        ended = []
        for uid, token, finish in self.runner.step().tokens:
            name = running[uid].task.job_id
            if finish is None:
                running[uid].append(token)
                self.answers[name] = self.answers.get(name, "") + chr(token)
            else:
                del running[uid]
                ended.append(str(name))
        self.finished += ended
        return ended

    def run(self) -> None:
        """Compute until nothing runs or waits."""
        for _ in range(10_000):
            self.step()
            if not self.scheduler.running and not self.scheduler.waiting_jobs():
                return
        raise AssertionError("some sequences never end")

    @property
    def running(self) -> set[str]:
        return {str(one.task.job_id) for one in self.scheduler.running.values()}

    @property
    def waiting(self) -> dict[str, WaitingFor]:
        return {str(job.id): job.waiting_for for job in self.scheduler.waiting_jobs()}

    def _reports_of(self, sequence: Sequence) -> list[Progress]:
        return self.reports.setdefault(sequence.task.job_id, [])


@settings(max_examples=20)
@given(st.permutations("abcde"))
def test_contexts_that_do_not_fit_together_take_turns(order: list[str]) -> None:
    """Each agent's next turn begins when its last one ends."""
    world = World()
    joined = take_turns(world, order)
    blind = World(cached_prefix=lambda _: CachedPrefix())
    take_turns(blind, order)
    # A scheduler that does not know what is in memory loads a context for nearly each turn.
    assert len(blind.runner.loads) > 4 * TURNS
    assert len(world.runner.loads) <= len(blind.runner.loads) / 2
    assert max(joined.index(f"{agent}0") for agent in order) <= PASSES_MAX + 2 * len(order)


def take_turns(world: World, order: Iterable[str]) -> list[str]:
    """Let each agent have its turns, and return them in their order."""
    prompts = {agent: agent * PROMPT_TOKENS for agent in order}
    turns = dict.fromkeys(prompts, 0)
    begin = [*prompts]
    while begin or world.scheduler.running or world.scheduler.waiting_jobs():
        for agent in begin:
            world.submit(f"{agent}{turns[agent]}", prompts[agent])
            turns[agent] += 1
            prompts[agent] += "."
        begin = [name[0] for name in world.step() if turns[name[0]] < TURNS]
    assert len(world.finished) == TURNS * len(prompts)
    return world.joined


def test_large_prompt_is_overtaken_until_it_is_due_and_then_waits_alone() -> None:
    world = World(contexts=3)
    world.submit("long", answer="x" * 100)
    world.step()
    world.submit("big", "B" * 100)
    for number in range(PASSES_MAX):
        world.submit(f"small-{number}", "s" * 10)
        while f"small-{number}" not in world.finished:
            world.step()
    world.submit("late", "s" * 10)
    world.step()
    assert world.running == {"long"}
    assert world.waiting == {"big": WaitingFor.MEMORY, "late": WaitingFor.MEMORY}
    world.run()
    assert world.joined[-2:] == ["big", "late"]


def test_what_another_worker_began_goes_on_before_new_and_shorter_prompts() -> None:
    world = World(places=1)
    world.submit("long", answer="x" * 20)
    world.step()
    for number in range(2):
        world.submit(f"new-{number}", "n" * 10)
        world.submit(f"second-attempt-{number}", attempt=2)
    world.submit("batch", "b" * 5, priority=Priority.BATCH, attempt=2)
    world.run()
    first, *order = world.joined
    assert first == "long"
    assert order == ["second-attempt-0", "second-attempt-1", "new-0", "new-1", "batch"]


def test_interactive_prompt_takes_the_memory_of_the_youngest_batch_sequence() -> None:
    world = World(contexts=2)
    for name in ("xold", "young"):
        world.submit(name, priority=Priority.BATCH, answer=ANSWER * 2)
        world.step()
    world.submit("interactive", priority=Priority.INTERACTIVE)
    world.step()
    assert world.running == {"xold", "interactive"}
    world.step()
    assert world.waiting == {"young": WaitingFor.MEMORY}
    world.run()
    assert world.finished[0] == "interactive"
    assert world.answers["young"] == world.answers["xold"] == ANSWER * 2


def test_interactive_prompt_takes_the_place_of_a_batch_sequence() -> None:
    world = World(contexts=9, places=2)
    for name in ("xold", "young"):
        world.submit(name, priority=Priority.BATCH)
    world.step()
    for name in ("first", "second", "third"):
        world.submit(name)
    world.step()
    assert world.running == {"first", "second"}
    assert next(iter(world.waiting.items())) == ("third", WaitingFor.PLACE)
    world.run()
    assert {*world.joined[2:5]} == {"first", "second", "third"}
    assert {*world.joined[5:]} == {"xold", "young"}


def test_batch_work_preempts_no_one() -> None:
    world = World(contexts=1)
    world.submit("running", priority=Priority.BATCH)
    world.step()
    world.submit("batch", priority=Priority.BATCH)
    world.step()
    assert world.running == {"running"}


def test_one_batch_sequence_after_another_is_preempted_with_a_pause_for_the_disk() -> None:
    world = World(contexts=2)
    for name in ("xold", "young"):
        world.submit(name, priority=Priority.BATCH, answer="x" * 20)
        world.step()
    world.submit("large", "L" * 100)
    world.step()
    assert world.running == {"xold"}
    begun = world.now
    while "large" not in world.running:
        world.step()
    assert world.now - begun >= PREEMPTION_PAUSE_S
    world.run()
    assert world.finished[0] == "large"


def test_batch_sequence_is_preempted_a_bounded_number_of_times() -> None:
    world = World(contexts=1)
    batch = world.submit("batch", priority=Priority.BATCH, answer="x" * 10)
    world.step()
    for number in range(2 * PREEMPTIONS_MAX):
        world.submit(f"n{number}", chr(200 + number) * PROMPT_TOKENS)
        while f"n{number}" not in world.finished:
            world.step()
        while "batch" not in world.running and "batch" not in world.finished:
            world.step()
    assert batch.preemptions == PREEMPTIONS_MAX
    assert "batch" in world.finished
    assert world.answers["batch"] == "x" * 10


def test_batch_prompt_joins_after_a_bounded_number_of_interactive_ones() -> None:
    world = World(contexts=1)
    world.submit("running")
    world.step()
    world.submit("batch", priority=Priority.BATCH)
    world.submit("n0", "n" * PROMPT_TOKENS)
    number = 0
    while "batch" not in world.finished:
        for name in world.step():
            if name == f"n{number}":
                number += 1
                world.submit(f"n{number}", "n" * PROMPT_TOKENS)
    assert world.joined.index("batch") == 1 + PASSES_MAX
    assert world.joined.count("batch") == 1


def test_waiting_sequences_report_reason_and_position_when_they_change() -> None:
    world = World(contexts=2)
    for name in "abc":
        world.submit(name, answer="x" * 60)
    world.step()
    assert world.reports.keys() == {"b", "c"}
    waits = [(one.total, one.waiting_for) for one in (*world.reports["b"], *world.reports["c"])]
    assert waits == [(0, WaitingFor.MEMORY), (1, WaitingFor.MEMORY)]
    world.run()
    assert [one.total for one in world.reports["c"]] == [1, 0]


def test_positions_are_reported_at_intervals() -> None:
    world = World(contexts=1)
    for number in range(30):
        world.submit(f"{number}", chr(200 + number) * PROMPT_TOKENS, answer="")
    begun = world.now
    world.run()
    reports = world.reports["29"]
    assert reports[0].total == 28
    assert 2 <= len(reports) <= 2 + (world.now - begun) / REPORT_S


def test_prompt_that_waits_for_a_prefix_names_it() -> None:
    world = World()
    reasons = {"p": WaitingFor.PREFIX, "m": WaitingFor.MEMORY}
    world.runner.must_wait = lambda admission: reasons.get(admission.label)  # type: ignore[method-assign]
    for name in ("p", "m", "other"):
        world.submit(name)
    world.step()
    assert (world.running, world.waiting) == ({"other"}, reasons)
