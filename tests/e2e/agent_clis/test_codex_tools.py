"""The real Codex CLI works: it runs our calls, goes on in a session, and outlives two deaths.

The model says its lines from a script. Whether the demo model would say them by itself is another
question; everything else is real, and so is what it remembers.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.support.clients.codex import begun, ended
from tests.support.polling import scaled, wait_until
from tests.support.processes.scripted_serve import SCRIPTED_WORKER
from tests.support.processes.service import Service

_PATIENCE_S = 300.0
#: Behind each event.
_LAST = 2**31
_PATCH = '*** Begin Patch\n*** Update File: made.txt\n@@\n-made\n+made "twice"\n*** End Patch\n'
_LONG = " ".join(f"word{n}" for n in range(40))
#: Nothing but tools and the question stands in the prompt: reading 10,000 tokens takes minutes on
#: a busy machine. ``gpt-5.5`` is a name for which Codex offers its patch as a custom tool.
_SHORT = """
model_instructions_file = "{instructions}"
include_permissions_instructions = false
include_apps_instructions = false
include_environment_context = false
include_collaboration_mode_instructions = false
[skills]
include_instructions = false
[skills.bundled]
enabled = false
[agents]
enabled = false
[features]
goals = false
"""


def _call(name: str, **arguments: str) -> str:
    return f"<tool_call>\n{json.dumps({'name': name, 'arguments': arguments})}\n</tool_call>"


_SCRIPT: list[dict[str, Any]] = [
    {"after": "Make it.", "text": _call("exec_command", cmd="echo made > made.txt && echo ok-1")},
    {"after": "ok-1", "text": _call("apply_patch", input=_PATCH)},
    {"after": "Success. Updated", "text": "It is made."},
    {"after": "Tell me more.", "text": _LONG, "hold_at": 60},
    {"after": "And now?", "text": "Nothing is left to do."},
    {"after": "Write only the summary", "text": "A file was made twice."},
    {"after": "A file was made twice.", "text": "I know that it was made."},
]


@dataclass(frozen=True, slots=True)
class _Stage:
    """A service whose model says its lines, and what a test did to it.

    Attributes:
        go: The file that lets a line go on that stands still.
        begun_at: Position of the last event before the test.
    """

    service: Service
    go: Path
    begun_at: int

    def events(self, *types: str) -> list[dict[str, Any]]:
        """Return the events of the test that have these types."""
        params = {"type": list(types), "limit": 500, "after": self.begun_at}
        return _page(self.service, **params)


@pytest.fixture(scope="module")
def playing(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    directory = tmp_path_factory.mktemp("codex")
    (directory / "script.json").write_text(json.dumps(_SCRIPT))
    service = Service(
        directory / "data",
        env={"SCRIPT_DIR": str(directory), "SEMANTIC_ENGINE__STEP_LIMIT_S": "0"},
        command=("-m", "tests.support.processes.scripted_serve"),
    ).start()
    yield service
    service.kill()


@pytest.fixture
def stage(playing: Service) -> _Stage:
    playing.wait_ready()
    go = playing.data_dir.parent / "go"
    go.unlink(missing_ok=True)
    newest = _page(playing, before=_LAST, limit=1)
    return _Stage(playing, go, newest[0]["position"] if newest else 0)


def _page(service: Service, **params: Any) -> list[dict[str, Any]]:
    url = f"{service.base_url}/v1/events"
    found: list[dict[str, Any]] = httpx.get(url, params=params, timeout=scaled(60)).json()["data"]
    return found


class _Session:
    """A session of Codex in its own home."""

    def __init__(self, codex: Path, service: Service, tmp_path: Path) -> None:
        self.home = tmp_path / "home"
        self.home.mkdir()
        (tmp_path / "instructions.md").write_text("You change files.")
        config = _SHORT.format(instructions=tmp_path / "instructions.md")

        def begin(*words: str) -> Any:
            return begun(
                codex, service, self.home, "-m", "gpt-5.5", *words, more=config, retries=12
            )

        self.begin = begin

    def ask(self, *words: str) -> list[dict[str, Any]]:
        return ended(self.begin(*words))


def _wait_for_words(stage: _Stage) -> str:
    """Return the job that has begun to speak, and stands still before the end of its line."""
    started = wait_until(lambda: stage.events("AttemptStarted"), within_s=_PATIENCE_S)
    job: str = started[-1]["stream"]
    url = f"{stage.service.base_url}/v1/jobs/{job}/stream"
    with httpx.stream("GET", url, timeout=scaled(_PATIENCE_S)) as stream:
        for line in stream.iter_lines():
            if line.startswith("data:") and json.loads(line[5:]).get("kind") == "text":
                return job
    raise AssertionError("it ended without a word")


def _wait_for_prompt_on_disk(stage: _Stage, job: str) -> None:
    """Return once all whole blocks of the job's prompt are stored; its partial block is the last.

    The worker writes behind: what it reads in its last moments before SIGKILL is read again.
    """
    (started,) = (one for one in stage.events("AttemptStarted") if one["stream"] == job)
    blocks, rest = divmod(started["data"]["prompt_tokens"] - 1, 256)

    def stored() -> bool:
        names = [path.name for path in stage.service.data_dir.rglob("*.kv")]
        whole = sum(name.endswith("-256.kv") for name in names)
        return whole >= blocks and any(name.endswith(f"-{rest}.kv") for name in names)

    wait_until(stored, within_s=_PATIENCE_S)


def _texts(events: list[dict[str, Any]]) -> list[str]:
    items = [event["item"] for event in events if event["type"] == "item.completed"]
    return [item["text"] for item in items if item["type"] == "agent_message"]


def test_codex_runs_a_command_patches_a_file_and_resumes(
    codex_binary: Path, stage: _Stage, tmp_path: Path
) -> None:
    session = _Session(codex_binary, stage.service, tmp_path)
    said = session.ask("Make it.")
    assert _texts(said) == ["It is made."], said
    assert (session.home / "work" / "made.txt").read_text() == 'made "twice"\n'
    name = said[0]["thread_id"]
    assert _texts(session.ask("resume", name, "And now?")) == ["Nothing is left to do."]

    jobs = stage.events("JobSubmitted")
    # Codex names its session in a header, and so the log knows whose it is.
    assert {job["data"]["agent"] for job in jobs} == {name}
    started = [one["data"] for one in stage.events("AttemptStarted")]
    ended_with = [one["data"]["usage"] for one in stage.events("JobCompleted")]
    assert len(started) == len(jobs) == 4
    for (before, now), spoken in zip(pairwise(started), ended_with, strict=False):
        # Everything that was read and said is known; the last token was never read.
        known = now["cached_tokens"]
        assert known >= before["prompt_tokens"] + spoken["completion_tokens"] - 2, (before, now)
        assert known >= 0.95 * before["prompt_tokens"]


def test_codex_has_its_conversation_compacted_by_the_service(
    codex_binary: Path, stage: _Stage, tmp_path: Path
) -> None:
    session = _Session(codex_binary, stage.service, tmp_path)
    vendor = ("-c", "model_providers.semantic.name=OpenAI")
    name = session.ask(*vendor, "And now?")[0]["thread_id"]
    limit = ("-c", "model_auto_compact_token_limit=10")
    events = session.ask("resume", name, *vendor, *limit, "Go on.")
    assert _texts(events)[-1] == "I know that it was made.", events
    assert len(stage.events("JobSubmitted")) == 3


def test_codex_that_wants_a_websocket_goes_on_by_http_at_once(
    codex_binary: Path, stage: _Stage, tmp_path: Path
) -> None:
    session = _Session(codex_binary, stage.service, tmp_path)
    events = session.ask("-c", "model_providers.semantic.supports_websockets=true", "And now?")
    assert _texts(events) == ["Nothing is left to do."], events
    # It reports each repeat of a connection, and any but the first reply of 426 has some.
    assert [event for event in events if event["type"] == "error"] == [], events


def test_a_codex_that_is_killed_frees_its_place_and_resumes(
    codex_binary: Path, stage: _Stage, tmp_path: Path
) -> None:
    session = _Session(codex_binary, stage.service, tmp_path)
    running = session.begin("Tell me more.")
    name = json.loads(next(line for line in running.stdout if line.startswith("{")))["thread_id"]
    job = _wait_for_words(stage)
    running.kill()
    running.communicate()
    wait_until(lambda: stage.events("JobCancelRequested"), within_s=_PATIENCE_S)
    stage.go.touch()
    (cancelled,) = wait_until(lambda: stage.events("JobCancelled"), within_s=_PATIENCE_S)
    assert cancelled["stream"] == job
    assert _texts(session.ask("resume", name, "And now?")) == ["Nothing is left to do."]
    before, now = (one["data"] for one in stage.events("AttemptStarted"))
    missed = stage.events("AgentCacheMissed", "AgentCacheEvicted", "WorkerStarted", "WorkerLost")
    assert now["cached_tokens"] >= 0.95 * before["prompt_tokens"], (before, now, missed)


@pytest.mark.parametrize("what", [pytest.param("worker", marks=pytest.mark.nightly), "service"])
def test_codex_gets_its_answer_whole_though_the_service_is_killed(
    codex_binary: Path, stage: _Stage, tmp_path: Path, what: str
) -> None:
    session = _Session(codex_binary, stage.service, tmp_path)
    running = session.begin("Tell me more.")
    job = _wait_for_words(stage)
    _wait_for_prompt_on_disk(stage, job)
    if what == "worker":
        stage.service.kill_part(SCRIPTED_WORKER)
    else:
        stage.service.kill()
        stage.service.start()
        # Codex asks again by itself.
        wait_until(
            lambda: stage.events("JobAttached") or stage.events("JobSubmitted")[1:],
            within_s=_PATIENCE_S,
        )
    stage.go.touch()
    assert _texts(ended(running)) == [_LONG]
    first, *again = stage.events("JobSubmitted")
    started = stage.events("AttemptStarted")
    assert first["stream"] == job
    assert [one["data"]["attempt"] for one in started if one["stream"] == job] == [1, 2]
    if again:
        # It had the reasoning whole before the end, and sends it back: another request, whose
        # prompt goes on from what is known. Else it joined the job that it began.
        assert what == "service"
        before, now = started[0]["data"], started[-1]["data"]
        assert now["cached_tokens"] >= 0.95 * before["prompt_tokens"], (before, now)
