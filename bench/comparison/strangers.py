"""Measurements by load generators and clients of others, which time and count what they see."""

from __future__ import annotations

import itertools
import json
import random
import subprocess
import threading
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, cast

import openai

from bench.comparison.measurements import MILLISECONDS, Figure, Measurement, Round, Row
from bench.comparison.server import MAX_TOKENS, Server
from bench.report.section import percentile
from bench.together.workloads import ADJECTIVES, PLACES, THINGS

_WORDS: Final = (*ADJECTIVES, *THINGS, *PLACES)
_ANSWER_TOKENS: Final = (8, 48)


@dataclass(frozen=True, slots=True, kw_only=True)
class Sizes:
    """How much of the traces is replayed.

    Attributes:
        scale: A prompt has one token for so many of the trace; divides 64.
        sessions: All run at once.
        turns: Of a session, from its first.
        prompt_tokens: Sessions with a longer prompt among those turns are left out.
    """

    scale: int
    sessions: int
    turns: int
    prompt_tokens: int


def read_sessions(folder: Path, sizes: Sizes, salt: str) -> list[dict[str, Any]]:
    """Return scaled sessions of coding agents from traces of kv-cache-tester, for agentic-bench.

    A trace has the lengths of prompts and answers, and for each block of 64 tokens of a prompt a
    number that other prompts of the trace share where they begin alike. It holds no text: words
    stand in.

    Args:
        folder: Holds the traces.
        salt: Sessions of another salt share no text.

    Raises:
        LookupError: The folder has too few traces of that size.
    """
    found = []
    for file in sorted(folder.glob("trace_*.json")):
        session = session_of(json.loads(file.read_text(encoding="utf-8")), sizes, salt)
        longest = max((turn["input_tokens"] for turn in session["turns"]), default=0)
        if len(session["turns"]) > 1 and longest <= sizes.prompt_tokens:
            found.append(session)
        if len(found) == sizes.sessions:
            return found
    raise LookupError(f"{len(found)} of {sizes.sessions} traces of this size in {folder}")


def session_of(trace: dict[str, Any], sizes: Sizes, salt: str) -> dict[str, Any]:
    """Return the turns of a trace up to the first prompt that does not continue the last one."""
    tokens = trace["block_size"] // sizes.scale
    head = (trace["tool_tokens"] + trace["system_tokens"]) // trace["block_size"]
    salt = f"{salt} {trace['id']}"
    known: list[int] = []
    turns: list[dict[str, Any]] = []
    for request in trace["requests"][: sizes.turns]:
        blocks = request.get("hash_ids", [])
        # The last block is often full only in the next prompt.
        shared = max(len(known) - 1, 0)
        if len(blocks) <= len(known) or blocks[:shared] != known[:shared]:
            break
        # The last answer is a message of its own.
        answered = turns[-1]["output_tokens"] // tokens if turns else head - len(known)
        fresh = blocks[len(known) + answered :] or blocks[-1:]
        output = min(max(request["out"] // sizes.scale, _ANSWER_TOKENS[0]), _ANSWER_TOKENS[1])
        turns.append(
            {
                "index": len(turns),
                "input_delta": [{"role": "user", "content": _text(fresh, tokens, salt)}],
                "assistant_text": _text([-len(turns)], output, salt),
                "input_tokens": len(blocks) * tokens,
                "output_tokens": output,
            }
        )
        known = blocks
    system = _text(known[:head], tokens, salt)
    return {"session_id": trace["id"], "system_prompt": system, "turns": turns}


def _text(blocks: Sequence[int], tokens: int, salt: str) -> str:
    """Return one word, which is about one token, for each token of some blocks."""
    words = (random.Random(f"{salt} {block}").choices(_WORDS, k=tokens) for block in blocks)
    return " ".join(itertools.chain.from_iterable(words))


_RUN_WITHIN_S: Final = 3600.0
_FLOAT32_BYTES: Final = 4
#: Bytes of contexts that a server may keep, of those of all sessions.
_TIGHT_SHARE: Final = 0.33
#: One context must fit, with its answer.
_LARGEST_SHARE: Final = 1.2
_REPLAYED: Final = Sizes(scale=16, sessions=3, turns=4, prompt_tokens=2_000)
_REPLAYED_LONG: Final = Sizes(scale=8, sessions=8, turns=10, prompt_tokens=7_000)
_SESSION: Final = {"sessions": 2, "main": 1_500, "sub": 400, "step": 500}
_SESSION_LONG: Final = {"sessions": 4, "main": 6_000, "sub": 1_500, "step": 750}
#: Share of the time of a cold request after which an impatient client gives up.
_PATIENCE: Final = 0.4
_RETRIES: Final = 8
#: Seconds after the last answer in which an abandoned computation shows.
_AFTER_S: Final = 3.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Turn:
    """One request, as a load generator recorded it.

    Attributes:
        session: Of requests that continue each other, in their order.
        cached_tokens: Prompt tokens that the server reports as reused.
    """

    session: str
    prompt_tokens: int
    cached_tokens: int
    first_s: float
    has_failed: bool


def rows_of(prefix: str, title: str, *, failed: str = "errors") -> tuple[Row, ...]:
    """Return the rows of ``figures_of``."""
    return (
        Row(f"{prefix}_reused", f"{title}: reusable tokens reused", "{:.1f} %"),
        Row(f"{prefix}_p50", "first text of warm turns, p50", MILLISECONDS),
        Row(f"{prefix}_p95", "first text of warm turns, p95", MILLISECONDS),
        Row(f"{prefix}_total", "total time", "{:,.0f} s"),
        Row(f"{prefix}_failed", failed, "{}"),
    )


def figures_of(prefix: str, turns: Iterable[Turn], total_s: float) -> dict[str, Figure]:
    """Return what a session's requests reuse of the prompt before each.

    The answer in between could be reused, too; it does not count, since a load generator may
    continue with another text. Without a warm turn there is no figure of warm turns.
    """
    before: dict[str, int] = {}
    reusable, reused, failed, of, warm_s = 0, 0, 0, 0, []
    for turn in turns:
        of += 1
        if turn.has_failed:
            failed += 1
            continue
        if known := before.get(turn.session, 0):
            reusable += known
            reused += min(known, turn.cached_tokens)
            warm_s.append(turn.first_s)
        before[turn.session] = turn.prompt_tokens
    figures: dict[str, Figure] = {
        f"{prefix}_total": total_s,
        f"{prefix}_failed": f"{failed} of {of}",
    }
    if warm_s:
        figures[f"{prefix}_reused"] = 100 * reused / reusable
        figures[f"{prefix}_p50"] = 1000 * percentile(warm_s, 0.5)
        figures[f"{prefix}_p95"] = 1000 * percentile(warm_s, 0.95)
    return figures


def _agents(server: Server, round_: Round) -> dict[str, Figure]:
    """Agents that work at once, each with sub-agents, by cache-pressure's ``agent-sim``."""
    sizes = _SESSION_LONG if round_.is_long else _SESSION
    out = round_.scratch / "agents.json"
    words = (
        f"--model {server.model} --max-context {_context(server)} --sessions {sizes['sessions']}"
    )
    words += f" --main-tokens {sizes['main']} --step-tokens {sizes['step']} --sub-windows 1"
    words += f" --sub-tokens {sizes['sub']} --finalize-tokens 100 --max-tokens 24 --no-viz"
    # Each server and each round gets the same texts, and a miss does not end the run.
    words += f" --salt {sum(round_.name.encode())} --miss-threshold 0"
    took_s = _tool(round_, "cache-pressure", "agent-sim", server, words, out)
    return figures_of("agents", _simulated(json.loads(out.read_text())["records"]), took_s)


def _simulated(records: Iterable[Mapping[str, Any]]) -> Iterator[Turn]:
    for record in records:
        is_sub = record["phase"] == "sub"
        yield Turn(
            session=f"{record['session']} {record['step'] if is_sub else 'main'}",
            prompt_tokens=record["prompt"] or 0,
            cached_tokens=record["cached"] or 0,
            first_s=record["ttft"] or 0.0,
            has_failed=bool(record["error"]),
        )


AGENTS = Measurement(_agents, *rows_of("agents", "agents and sub-agents (agent-sim)"))


def _replay(server: Server, round_: Round) -> dict[str, Figure]:
    """Sessions of Claude Code by agentic-bench: with ample memory, with little, and with a kill.

    The kill comes after a third of the time of the first replay, so that a faster one is hit, too.
    """
    figures = _replayed("ample", server, round_)
    took_s = float(figures["ample_total"])
    data_dir = round_.scratch / "data"
    with server.sibling(server.model, data_dir, _tight_mb(server, round_)) as tight:
        figures |= _replayed("tight", tight, round_)
    killer = threading.Timer(took_s / 3, server.kill_engine)
    killer.start()
    try:
        figures |= _replayed("killed", server, round_)
    finally:
        killer.cancel()
        killer.join()
    return figures


def _replayed(prefix: str, server: Server, round_: Round) -> dict[str, Figure]:
    sessions = _sessions(round_, prefix)
    folder = round_.scratch / prefix
    folder.mkdir(parents=True, exist_ok=True)
    data, out = folder / "sessions.jsonl", folder / "out.jsonl"
    data.write_text("".join(json.dumps(one) + "\n" for one in sessions), encoding="utf-8")
    words = f"run --model {server.model} --backend openai --dataset-path {data} --no-gaps"
    words += f" --num-sessions {len(sessions)} --max-concurrency {len(sessions)} --disable-tqdm"
    words += f" --warmup-requests 0 --metrics-interval 0 --turn-timeout {_RUN_WITHIN_S:.0f}"
    took_s = _tool(round_, "agentic-bench", "abench", server, words, out)
    return figures_of(prefix, _recorded(json.loads(out.read_text())["sessions"]), took_s)


def _recorded(sessions: Iterable[Mapping[str, Any]]) -> Iterator[Turn]:
    for session in sessions:
        for turn in session["turns"]:
            yield Turn(
                session=session["session_id"],
                prompt_tokens=turn["input_len"],
                cached_tokens=turn["server_cached_tokens"],
                first_s=turn["ttft"],
                has_failed=not turn["success"],
            )


REPLAY = Measurement(
    _replay,
    *rows_of("ample", "sessions of Claude Code (agentic-bench)"),
    *rows_of("tight", f"the same with {_TIGHT_SHARE} of the memory"),
    *rows_of("killed", "the same with a SIGKILL in the middle", failed="answers lost"),
)


def _impatient(server: Server, round_: Round) -> dict[str, Figure]:
    """A client of the openai package that gives up before the prompt is read, and tries again."""
    patient = openai.OpenAI(base_url=f"{server.base_url}/v1", api_key="none", max_retries=0)
    alone_s, took_s, _ = _asked(server, patient, round_, "patient")
    hasty = patient.with_options(timeout=_PATIENCE * took_s, max_retries=_RETRIES)
    cpu_s, _, answer = _asked(server, hasty, round_, "hasty")
    return {"delivered": answer, "computations": cpu_s / alone_s}


def _asked(
    server: Server, client: openai.OpenAI, round_: Round, name: str
) -> tuple[float, float, str]:
    """Return CPU seconds, wall seconds, and how often the client had to ask."""
    messages = round_.conversations.begin(f"{name} {round_.name}")
    before, began = server.cpu_s(), time.monotonic()
    try:
        answer = client.chat.completions.with_raw_response.create(
            model=str(server.model),
            messages=cast("Any", messages),
            max_tokens=MAX_TOKENS,
            temperature=0,
        )
        delivered = f"after {answer.retries_taken} retries"
    except openai.OpenAIError as error:
        delivered = f"none: {type(error).__name__} after {_RETRIES} retries"
    took_s = time.monotonic() - began
    time.sleep(_AFTER_S)
    return server.cpu_s() - before, took_s, delivered


IMPATIENT = Measurement(
    _impatient,
    Row("delivered", "a client that waits 0.4 of the time and retries (openai): answer", "{}"),
    Row("computations", "CPU of its request and retries / of one request", "{:.2f} ×"),  # noqa: RUF001 - the sign for times
)


def _tool(
    round_: Round, distribution: str, program: str, server: Server, words: str, out: Path
) -> float:
    """Run a load generator to its end, and return its seconds.

    Raises:
        RuntimeError: It wrote no result; the message has the end of its output.
    """
    out.parent.mkdir(parents=True, exist_ok=True)
    output = "--output-file" if program == "abench" else "--output"
    began = time.monotonic()
    begin = [str(round_.rivals / distribution / "bin" / program), *words.split()]
    url = server.base_url if program == "abench" else f"{server.base_url}/v1"
    done = subprocess.run(
        [*begin, "--base-url", url, output, str(out)],
        cwd=out.parent,
        capture_output=True,
        text=True,
        timeout=_RUN_WITHIN_S,
        check=False,
    )
    took_s = time.monotonic() - began
    if not out.exists():
        raise RuntimeError(f"{program} wrote no result: {(done.stdout + done.stderr)[-500:]}")
    return took_s


def _sessions(round_: Round, name: str) -> list[dict[str, Any]]:
    sizes = _REPLAYED_LONG if round_.is_long else _REPLAYED
    return read_sessions(round_.rivals / "traces", sizes, f"{name} {round_.name}")


def _tight_mb(server: Server, round_: Round) -> int:
    """Return the budget of contexts that holds a third of all sessions, and the longest one."""
    config = json.loads((server.model / "config.json").read_text(encoding="utf-8"))
    heads = config.get("num_key_value_heads", config["num_attention_heads"])
    size = config.get("head_dim", config["hidden_size"] // config["num_attention_heads"])
    token_bytes = 2 * config["num_hidden_layers"] * heads * size * _FLOAT32_BYTES
    longest = [
        sum((session["turns"][-1]["input_tokens"], session["turns"][-1]["output_tokens"]))
        for session in _sessions(round_, "tight")
    ]
    tokens = max(_TIGHT_SHARE * sum(longest), _LARGEST_SHARE * max(longest))
    return max(1, int(tokens * token_bytes / 2**20))


def _context(server: Server) -> int:
    config = json.loads((server.model / "config.json").read_text(encoding="utf-8"))
    return int(config["max_position_embeddings"])
