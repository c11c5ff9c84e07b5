"""The real Claude Code CLI where a turn does not simply end: interrupted, compacted, killed.

One service with one place in its batch, a short context and a key. The model keeps to a script;
everything else is real, prompts and caches too.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.clients.claude_code import ClaudeCode, ask, end_of
from tests.support.clients.service_log import ServiceLog
from tests.support.clients.terminal import ESCAPE
from tests.support.processes.scripted_serve import SCRIPTED_WORKER
from tests.support.processes.scripted_service import line, scripted_service
from tests.support.processes.service import Service

KEY = "key-of-this-service"
CONTEXT = 32_768
#: Claude Code compacts before a prompt that would pass CONTEXT - output limit - 3,000.
LONG = " ".join(f"boat{number}" for number in range(3000))
#: Far longer than anybody looks at it, and slow enough to be caught in the middle anywhere.
ENDLESS = "Ahoy. " + " ".join(map(str, range(5000)))
TALE = "Once upon a time. " + " ".join(map(str, range(60))) + " The end."
SCRIPT = (
    line("I like boats", "Aye."),
    line("summary of the conversation", "<analysis>Boats.</analysis>\n<summary>Boats.</summary>"),
    line("And ships?", "Aye."),
    line("Do you?", "Aye."),
    line("Talk for ever", ENDLESS, pace_s=0.01),
    line("What was it, boatswain", "It was interrupted."),
    line("Tell a tale", TALE, pace_s=0.025),
)


@pytest.fixture(scope="module")
def narrow(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    service = scripted_service(
        tmp_path_factory.mktemp("turns"),
        SCRIPT,
        SEMANTIC_ENGINE__MAX_BATCH_SIZE="1",
        SEMANTIC_MODEL__CONTEXT_LENGTH=str(CONTEXT),
        SEMANTIC_SERVER__API_KEYS=json.dumps([KEY]),
        SEMANTIC_API_KEY=KEY,
    ).start()
    yield service
    assert service.stop() == 0, service.log()


@pytest.fixture
def log(narrow: Service) -> Iterator[ServiceLog]:
    with ServiceLog(narrow) as reader:
        yield reader


@pytest.fixture
def user(claude_binary: Path, narrow: Service, tmp_path: Path) -> ClaudeCode:
    return ClaudeCode(claude_binary, narrow, tmp_path)


def newest(log: ServiceLog) -> dict[str, Any] | None:
    jobs = log.jobs()
    return jobs[-1] if jobs else None


def newer_than(known: dict[str, Any] | None, log: ServiceLog) -> dict[str, Any]:
    """Return the first job behind a known one, once it is there."""
    last = "" if known is None else known["id"]
    return log.until(lambda: next((job for job in log.jobs() if job["id"] > last), None))


def ended(job_id: str, log: ServiceLog) -> dict[str, Any]:
    """Return a job once it is over."""
    return log.until(lambda: job if (job := log.job(job_id))["finished_at"] else None)


def position(log: ServiceLog, stream: str, kind: str) -> int:
    (found,) = [event for event in log.events(stream=stream) if event["type"] == kind]
    return int(found["position"])


def test_escape_frees_the_place_and_the_next_turn_goes_on_from_what_was_said(
    user: ClaudeCode, log: ServiceLog
) -> None:
    before = newest(log)
    with user.terminal() as terminal:
        terminal.wait_for("\N{HEAVY RIGHT-POINTING ANGLE QUOTATION MARK ORNAMENT}")
        terminal.enter("Talk for ever")
        terminal.wait_for("Ahoy")
        talked = newer_than(before, log)
        body = {"max_tokens": 9, "messages": [{"role": "user", "content": "Wait your turn."}]}
        waiting = log.http.post("/v1/jobs", json={"model": "claude-any"} | body).json()["id"]
        terminal.press(ESCAPE)
        talked = ended(talked["id"], log)
        assert talked["status"] == "cancelled"
        # The one place is free: who waited has it.
        assert ended(waiting, log)["status"] == "completed"
        # The ends of both are written at once, in either order.
        cancelled = position(log, talked["id"], "JobCancelRequested")
        assert cancelled < position(log, waiting, "JobCompleted")
        known = newest(log)
        terminal.enter("What was it, boatswain")
        after = ended(newer_than(known, log)["id"], log)
    assert after["status"] == "completed"
    assert after["agent_id"] == talked["agent_id"]
    usage, said = after["usage"], talked["usage"]
    # The prompt, and of the answer what the client had seen of it.
    assert usage["cached_tokens"] > said["prompt_tokens"]
    assert usage["cached_tokens"] >= 0.95 * usage["prompt_tokens"], (said, usage)
    assert said["completion_tokens"] < 5000


def test_a_conversation_is_compacted_when_its_user_says_so(
    user: ClaudeCode, log: ServiceLog
) -> None:
    session = user.ask("I like boats.")["session_id"]
    user.ask("/compact", "--continue")
    assert user.ask("And ships?", "--continue")["result"] == "Aye."
    first, compaction, after = log.jobs(session)
    assert said(compaction, log).endswith("<summary>Boats.</summary>")
    assert_begins_with(first, compaction)
    # Tools and system prompt stay, and it is said what became of the rest.
    assert after["usage"]["cached_tokens"] > 0
    parted = log.job(after["id"])["cache"]["divergence"]
    assert (parted["cause"], parted["place"]) == ("history_cut", "messages[1] user")


def test_a_conversation_that_fills_the_window_is_compacted_by_itself(
    user: ClaudeCode, log: ServiceLog
) -> None:
    session = user.ask(f"{LONG} I like boats.")["session_id"]
    assert user.ask(f"{LONG} Do you?", "--continue")["result"] == "Aye."
    first, compaction, after = log.jobs(session)
    assert said(compaction, log).endswith("<summary>Boats.</summary>")
    assert_begins_with(first, compaction)
    assert [job["status"] for job in (first, compaction, after)] == ["completed"] * 3


def test_a_prompt_that_is_too_long_makes_it_compact_and_go_on(
    user: ClaudeCode, log: ServiceLog
) -> None:
    # A client that believes in a larger window than there is hears of it from the error alone.
    larger = json.dumps({"env": {"CLAUDE_CODE_MAX_CONTEXT_TOKENS": "999999"}})
    session = user.ask(f"{LONG} I like boats.", "--settings", larger)["session_id"]
    result = user.ask(f"{LONG} Do you?", "--settings", larger, "--continue")
    assert result["result"] == "Aye."
    first, refused, compaction, after = log.jobs(session)
    assert refused["error"]["code"] == "prompt_too_long"
    assert f"> {CONTEXT - 1} maximum" in refused["error"]["message"]
    assert_begins_with(first, compaction)
    assert after["status"] == "completed"


def said(job: dict[str, Any], log: ServiceLog) -> str:
    return str(log.job(job["id"])["output"]["text"])


def assert_begins_with(first: dict[str, Any], later: dict[str, Any]) -> None:
    """A later prompt begins with an earlier one and its answer, and did not compute them again."""
    assert later["usage"]["cached_tokens"] >= 0.95 * first["usage"]["total_tokens"], (first, later)


@pytest.mark.parametrize(
    "part",
    [
        pytest.param(SCRIPTED_WORKER, marks=pytest.mark.nightly),
        "api",
        pytest.param("service", marks=pytest.mark.nightly),
    ],
)
def test_what_is_killed_in_the_middle_of_an_answer_is_not_missed(
    user: ClaudeCode, narrow: Service, log: ServiceLog, part: str
) -> None:
    before = newest(log)
    words = ("--verbose", "--include-partial-messages")
    asked = user.begin("Tell a tale", *words, form="stream-json")
    try:
        job = newer_than(before, log)
        assert asked.stdout is not None
        assert any('"Once' in line for line in asked.stdout), "it ended without a word"
        if part == "service":
            narrow.kill()
            narrow.start()
        else:
            narrow.kill_part(part)
    finally:
        code, out, err = end_of(asked)
    assert code == 0, out + err
    assert json.loads(out.splitlines()[-1])["result"] == TALE
    assert ended(job["id"], log)["status"] == "completed"
    happened = log.types(job["id"])
    if part == SCRIPTED_WORKER:
        # The client saw a pause of one stream, and no more.
        assert happened.count("AttemptStarted") == 2
        assert happened.count("JobAttached") == 0
        assert [one["id"] for one in log.jobs(job["agent_id"])] == [job["id"]]


def test_the_service_s_key_beats_what_the_user_keeps_for_others(
    user: ClaudeCode, log: ServiceLog
) -> None:
    theirs = {"ANTHROPIC_AUTH_TOKEN": "of-another-gateway", "ANTHROPIC_API_KEY": "sk-ant-theirs"}
    settings = user.home / ".claude" / "settings.json"
    settings.parent.mkdir()
    settings.write_text(json.dumps({"apiKeyHelper": "echo theirs", "env": theirs}))
    result = user.ask("I like boats.")
    assert result["result"] == "Aye."
    assert len(log.jobs(result["session_id"])) == 1
    assert KEY not in " ".join(user.argv())


def test_a_wrong_key_is_refused_in_words_at_once(
    claude_binary: Path, user: ClaudeCode, narrow: Service
) -> None:
    refusal = "the key is not one of this service's"
    code, out, err = end_of(user.begin("I like boats.", SEMANTIC_API_KEY="not-the-right-key"))
    assert (code, out) == (1, "")
    assert err == f"semantic: {refusal} (401)\n"
    # The same for lines that were pasted; without x-should-retry it repeats a 401 for minutes.
    done = ask(claude_binary, narrow, user.home, "-p", "I like boats.", "--output-format", "json")
    result = json.loads(done.stdout)
    assert result["is_error"]
    assert result["result"] == f"Failed to authenticate. API Error: 401 {refusal}"
