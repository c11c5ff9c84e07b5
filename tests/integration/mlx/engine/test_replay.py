"""Answers of a real model, computed again from the log."""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from domain.audit.replay import Refusal, Verdict
from domain.chat.request import Message, ToolChoice
from domain.events.job import AttemptStarted
from domain.model.registry import ModelEntry
from domain.values import JobId, Sampling, StopReason
from ops.cli import replay
from ops.cli.main import build_app
from ops.data_dir.lock import DataLock
from ops.settings.models import DEMO_MODEL
from tests.support.builders.log_files import raw_connection
from tests.support.models.engine_probe import ask
from tests.support.models.replay_world import ReplayWorld
from tests.support.models.samplings import FILTERED, GREEDY, PENALISED, SAMPLED
from tests.support.models.tiny_models import make_tiny_llama

LONG = "the quick brown fox jumps over the lazy dog " * 12
WEATHER: dict[str, Any] = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "Get the weather of a city",
        "parameters": {"type": "object", "properties": {"location": {"type": "string"}}},
    },
}


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("data")


@pytest.fixture(scope="module")
def world(directory: Path) -> Iterator[ReplayWorld]:
    model = make_tiny_llama(directory / "tiny")
    with ReplayWorld(directory, str(model)) as world:
        yield world


@pytest.fixture(scope="module")
def sampled(world: ReplayWorld) -> JobId:
    return world.run(ask("tell me", max_tokens=30, sampling=SAMPLED))[0]


@pytest.mark.parametrize(
    "sampling",
    [GREEDY, SAMPLED, FILTERED, PENALISED],
    ids=["greedy", "sampled", "cut", "penalised"],
)
def test_an_answer_is_the_same_again(world: ReplayWorld, sampling: Sampling) -> None:
    (job,) = world.run(ask("tell me more", max_tokens=25, sampling=sampling))
    done, answer = world.replay(job), world.answer(job)
    said = (len(answer["token_ids"]), answer["text"])
    assert (done.verdict, done.attempts) == (Verdict.SAME, 1)
    assert (done.tokens, done.text) == said


def test_another_model_shows_where_the_texts_part(
    world: ReplayWorld, sampled: JobId, directory: Path
) -> None:
    same = world.replay(sampled, is_against=True)
    assert (same.verdict, same.parting) == (Verdict.SAME, None)
    other = make_tiny_llama(directory / "other", seed=3)
    done = world.replay(sampled, model=str(other), is_against=True)
    stored = world.answer(sampled)["text"]
    assert (done.verdict, done.parting is None) == (Verdict.PARTED, False)
    assert done.parting is not None
    assert done.text is not None
    chars = done.parting.chars
    assert done.text[:chars] == stored[:chars]
    assert done.text[chars : chars + 1] != stored[chars : chars + 1]
    assert stored[chars:].startswith(done.parting.stored)
    gone = world.replay(sampled, model=str(directory / "none"), is_against=True)
    assert (gone.verdict, gone.reason) == (Verdict.REFUSED, Refusal.MODEL_DIFFERS)


def test_one_that_a_stop_text_ended_is_the_same_again(world: ReplayWorld, sampled: JobId) -> None:
    text = world.answer(sampled)["text"]
    stop = text[len(text) // 2 :][:3]
    (job,) = world.run(ask("tell me", max_tokens=30, sampling=SAMPLED, stop=(stop,)))
    done = world.replay(job)
    assert (done.verdict, done.tokens) == (Verdict.SAME, len(world.answer(job)["token_ids"]))
    assert done.tokens < 30


def test_prompt_that_was_only_read_has_the_same_empty_answer(world: ReplayWorld) -> None:
    (job,) = world.run(ask(LONG, max_tokens=0, sampling=SAMPLED))
    done, answer = world.replay(job), world.answer(job)
    assert (answer["token_ids"], answer["text"]) == ([], "")
    assert (done.verdict, done.tokens) == (Verdict.SAME, 0)


def test_request_behind_a_prompt_that_was_only_read_finds_it_in_the_cache(
    world: ReplayWorld,
) -> None:
    request = ask("Only read. " + LONG, max_tokens=0, sampling=SAMPLED)
    world.run(request)
    (warm,) = world.run(replace(request, max_tokens=4))
    assert world.replay(warm).cached_tokens > 16


def test_those_that_shared_a_batch_are_the_same_alone(world: ReplayWorld) -> None:
    requests = [
        ask("word " * (7 * number + 1), max_tokens=20 + number, sampling=sampling)
        for number, sampling in enumerate([GREEDY, SAMPLED, FILTERED, SAMPLED])
    ]
    done = [world.replay(job) for job in world.run(*requests)]
    assert [one.verdict for one in done] == [Verdict.SAME] * 4


def test_one_that_began_from_kept_blocks_is_the_same_cold(world: ReplayWorld) -> None:
    request = ask(LONG, max_tokens=12, sampling=SAMPLED)
    world.run(request)
    (warm,) = world.run(request)
    done = world.replay(warm)
    assert done.cached_tokens > 16
    assert done.verdict is Verdict.SAME


@pytest.mark.parametrize("items", [1, 2, 11])
def test_one_that_a_second_attempt_finished_is_the_same_in_one_go(
    world: ReplayWorld, sampled: JobId, items: int
) -> None:
    job = world.resume(sampled, items=items)
    attempts = [event for event in world.events(job) if isinstance(event, AttemptStarted)]
    assert (attempts[1].resumed_tokens > 0) == (items > 1)
    done = world.replay(job)
    assert (done.verdict, done.attempts, done.tokens) == (Verdict.SAME, 2, 30)


def test_calls_of_tools_are_the_same_again(tmp_path: Path) -> None:
    request = replace(
        ask("What is the weather in Paris?", max_tokens=60, tools=(WEATHER,)),
        tool_choice=ToolChoice(mode="tool", name="get_weather"),
    )
    with ReplayWorld(tmp_path, DEMO_MODEL) as world:
        (job,) = world.run(request)
        assert world.answer(job)["tool_calls"][0]["is_complete"]
        assert world.replay(job).verdict is Verdict.SAME


def test_a_turn_that_goes_on_from_sampled_tokens_needs_the_turn_before(world: ReplayWorld) -> None:
    request = ask("tell me", max_tokens=30, sampling=replace(SAMPLED, seed=5))
    (first,) = world.run(request)
    said = Message(role="assistant", content=world.answer(first)["text"], origin=first)
    asked = (*request.messages, said, Message(role="user", content="go on"))
    (second,) = world.run(replace(request, messages=asked))
    assert world.replay(second).verdict is Verdict.SAME
    world.erase(first)
    done = world.replay(second)
    # The echo is tokenised as a text now, and not as the model had sampled it.
    assert (done.verdict, done.reason) == (Verdict.REFUSED, Refusal.PROMPT_DIFFERS)


def test_without_comparing_the_text_is_told(world: ReplayWorld, sampled: JobId) -> None:
    done = world.replay(sampled, verify=False)
    assert (done.verdict, done.text) == (Verdict.REPLAYED, world.answer(sampled)["text"])


@pytest.mark.parametrize(
    "sampling",
    [GREEDY, SAMPLED, FILTERED, PENALISED],
    ids=["greedy", "sampled", "cut", "penalised"],
)
@pytest.mark.parametrize("index", [0, 13, 24])
def test_the_first_token_that_is_another_is_named(
    world: ReplayWorld, sampling: Sampling, index: int
) -> None:
    (job,) = world.run(ask("what differs", max_tokens=25, sampling=sampling))
    ids = world.answer(job)["token_ids"]
    index = min(index, len(ids) - 1)
    other = 300 if ids[index] != 300 else 301
    done = world.replay(world.planted(job, lambda ids: [*ids[:index], other, *ids[index + 1 :]]))
    assert (done.verdict, done.tokens) == (Verdict.DIVERGED, index)
    found = done.divergence
    assert found is not None
    assert (found.index, found.stored.id, found.replayed.id) == (index, other, ids[index])
    assert found.stored.logprob is not None
    assert found.replayed.logprob is not None
    assert found.gap == pytest.approx(found.replayed.logprob - found.stored.logprob, abs=1e-5)
    # What was drawn scored best; what top_p and its like cut off could not be drawn at all.
    assert found.draw_gap is None or found.draw_gap > 0
    if sampling is GREEDY:
        assert found.draw_gap == pytest.approx(found.gap, abs=1e-5)


def test_an_answer_that_ended_too_early_is_told_from_one_that_goes_on(
    world: ReplayWorld, sampled: JobId
) -> None:
    done = world.replay(world.planted(sampled, lambda ids: ids[:9]))
    assert done.verdict is Verdict.DIVERGED
    assert done.divergence is not None
    assert (done.divergence.index, done.divergence.stored.id) == (9, None)
    assert done.divergence.replayed.id == world.answer(sampled)["token_ids"][9]


def test_an_old_answer_without_tokens_is_compared_by_its_hash(
    world: ReplayWorld, sampled: JobId
) -> None:
    old = world.planted(sampled, lambda _: None)
    assert world.replay(old).verdict is Verdict.SAME


def test_the_same_tokens_with_another_text_are_no_match(world: ReplayWorld, sampled: JobId) -> None:
    answer = world.answer(sampled)
    forged = world.forged(sampled, answer | {"text": "another"}, answer["token_ids"])
    done = world.replay(forged)
    assert (done.verdict, done.divergence) == (Verdict.DIVERGED, None)
    assert "text" in done.message


def test_other_weights_are_refused_and_named(
    world: ReplayWorld, sampled: JobId, tmp_path: Path
) -> None:
    other = make_tiny_llama(tmp_path / "tiny", seed=8)
    done = world.replay(sampled, model=str(other))
    assert (done.verdict, done.reason) == (Verdict.REFUSED, Refusal.MODEL_DIFFERS)
    assert str(other) in done.message
    copy = shutil.copytree(world.model, tmp_path / "copy")
    assert world.replay(sampled, model=str(copy)).verdict is Verdict.SAME
    template = copy / "chat_template.jinja"
    template.write_text(template.read_text() + "{# another #}")
    assert world.replay(sampled, model=str(copy)).reason is Refusal.MODEL_DIFFERS


def test_a_registered_name_leads_to_the_weights_of_an_answer(
    world: ReplayWorld, sampled: JobId, tmp_path: Path
) -> None:
    other = str(make_tiny_llama(tmp_path / "other", seed=8))
    entry = ModelEntry(name=Path(world.model).name, source=world.model)
    found = world.replay(sampled, configured=other, registered=[entry])
    assert found.verdict is Verdict.SAME
    assert world.replay(sampled, configured=other).reason is Refusal.MODEL_DIFFERS


def test_a_job_that_has_no_answer_is_refused(world: ReplayWorld) -> None:
    waits = world.submit(ask("later"))
    assert world.replay(waits).reason is Refusal.NOT_COMPLETED
    assert world.replay("job-none").reason is Refusal.NOT_IN_LOG


def test_an_answer_that_was_erased_or_changed_is_refused(world: ReplayWorld) -> None:
    (job,) = world.run(ask("forget me", max_tokens=5))
    output = world.output_of(job)
    connection = raw_connection(world.url)
    connection.execute("UPDATE payloads SET content = ? WHERE digest = ?", (b"{}", output))
    assert world.replay(job).reason is Refusal.PAYLOAD_CHANGED
    connection.close()
    world.erase(job)
    done = world.replay(job)
    assert (done.verdict, done.reason) == (Verdict.REFUSED, Refusal.PAYLOAD_GONE)


def _run(directory: Path, *arguments: str) -> Result:
    model = ("--model", str(directory / "tiny"))
    command = ["replay", *arguments, *model, "--data-dir", str(directory)]
    return CliRunner().invoke(build_app(), command)


def test_the_command_replays_beside_a_worker_and_writes_nothing(
    world: ReplayWorld, directory: Path, sampled: JobId
) -> None:
    forged = world.planted(sampled, lambda ids: [*ids[:4], 300, *ids[5:]])
    head, files = world.log.head(), _names(directory)
    with DataLock(directory / "worker.lock"):
        result = _run(directory, sampled, forged, "job-none", "--verify")
    assert result.exit_code == 1, result.output
    assert "same: the same 30 tokens" in result.stdout
    assert "index 4" in result.stdout
    assert "job job-none is not in the log" in result.stderr
    assert world.log.head() == head
    written = {name for name in _names(directory) - files if not name.startswith("tmp")}
    assert written <= {"worker.lock", "digests.json"}


@pytest.mark.usefixtures("world")
def test_a_job_that_is_not_in_the_log_needs_no_model(
    directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delattr("ops.cli.replay.LineChild")
    result = _run(directory, "x")
    assert (result.exit_code, result.stderr) == (
        3,
        "x cannot be replayed: job x is not in the log\n",
    )


def test_many_are_told_in_a_table_and_as_json(
    directory: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    compute, known = replay._replayed, dict[str, dict[str, Any]]()

    def replayed(settings: Any, jobs: Sequence[str], command: Any) -> list[dict[str, Any]]:
        """Start one process only: a second one would compute the same."""
        if not known:
            known.update({one["job"]: one for one in compute(settings, jobs, command)})
        return [known[job] for job in jobs]

    monkeypatch.setattr(replay, "_replayed", replayed)
    with ReplayWorld(tmp_path, str(directory / "tiny")) as world:
        jobs = world.run(*[ask(f"number {number}", max_tokens=4) for number in range(3)])
    shutil.copytree(directory / "tiny", tmp_path / "tiny")
    result = _run(tmp_path, "--all", "--verify", "--since", "1h")
    assert result.exit_code == 0, result.output
    assert result.stdout.splitlines()[-1] == "3 same"
    told = json.loads(_run(tmp_path, "--all", "--verify", "--sample", "2", "--json").stdout)
    assert [one["job"] for one in told] == [min(jobs), max(jobs)]
    assert {one["verdict"] for one in told} == {"same"}


def test_what_cannot_be_replayed_has_an_exit_code_of_its_own(
    directory: Path, sampled: JobId, tmp_path: Path
) -> None:
    other = ["--model", DEMO_MODEL, "--data-dir", str(directory)]
    result = CliRunner().invoke(build_app(), ["replay", sampled, "--verify", *other])
    assert result.exit_code == 3, result.output
    assert "semantic-demo computes with sha256:" in result.stderr
    assert _run(tmp_path, "job-none").exit_code == 3
    assert _run(directory).exit_code == 2


def test_a_process_that_dies_before_it_reads_the_jobs_is_an_error(
    directory: Path, sampled: JobId, monkeypatch: pytest.MonkeyPatch
) -> None:
    dead = (sys.executable, "-c", "")
    monkeypatch.setattr(replay, "module_argv", lambda _: dead)
    # More than the pipe holds, so that the command still writes when the process ends.
    result = _run(directory, sampled, *(f"job-{number}" for number in range(20_000)))
    assert result.exit_code == 3, result.output
    assert "the replay ended early, with exit code 0" in result.stderr


def _names(directory: Path) -> set[str]:
    return {str(path.relative_to(directory)) for path in directory.rglob("*")}


def test_a_context_that_was_full_ends_where_it_did(world: ReplayWorld, tmp_path: Path) -> None:
    model = make_tiny_llama(tmp_path / "short", context=64)
    with ReplayWorld(tmp_path, str(model)) as small:
        (job,) = small.run(ask("tell me", max_tokens=500, sampling=SAMPLED))
        completed = small.events(job)[-1]
        assert getattr(completed, "stop_reason", None) is StopReason.CONTEXT_WINDOW
        assert small.replay(job).verdict is Verdict.SAME
    assert world.model != str(model)
