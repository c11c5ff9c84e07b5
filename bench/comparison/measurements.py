"""The measurements that run on every server."""

from __future__ import annotations

import json
import shutil
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import mlx.core as mx

from bench.client import Message
from bench.comparison.conversation import Conversations, next_turn
from bench.comparison.server import Server

Attention = Literal["as-is", "full"]
#: Standard deviation of the random factors that change the weights.
_NOISE = 0.3


def copy_model(source: Path, target: Path, attention: Attention = "as-is") -> Path:
    """Copy a model's files.

    Args:
        source: Directory of the model; it is not changed.
        target: Directory to create.
        attention: ``full`` replaces sliding windows by full attention. The answers become
            meaningless, but servers that cannot reuse sliding windows can show their reuse.
    """
    shutil.copytree(source, target, ignore=shutil.ignore_patterns("__pycache__", "*.py"))
    if attention == "full":
        config_file = target / "config.json"
        config = json.loads(config_file.read_text())
        for key in ("layer_types", "sliding_window"):
            config.pop(key, None)
        config_file.write_text(json.dumps(config, indent=2))
    return target


def swap_weights(model: Path) -> None:
    """Replace the weights by others of the same shapes; all other files stay unchanged."""
    key = mx.random.key(0)
    for file in sorted(model.glob("*.safetensors")):
        weights = mx.load(str(file))
        assert isinstance(weights, dict)
        for name, weight in weights.items():
            key, draw = mx.random.split(key)
            noise = mx.random.normal(weight.shape, scale=_NOISE, key=draw)
            weights[name] = (weight * (1 + noise)).astype(weight.dtype)
        swapped = file.with_suffix(".swapped.safetensors")
        mx.save_safetensors(str(swapped), weights, {"format": "mlx"})
        swapped.replace(file)


#: A number in the unit of its row, or a verdict as text.
Figure = float | str


@dataclass(frozen=True, slots=True)
class Row:
    """A row of the table.

    Attributes:
        key: Its name in the JSON.
        title: Its name in the table.
        form: Format of one figure.
    """

    key: str
    title: str
    form: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Round:
    """The parameters that all servers of a round share.

    Attributes:
        name: Part of every prompt, so that no prompt of another round is cached.
        conversations: Makes the prompts.
        scratch: A directory for this server in this round.
        rivals: Folder of the environments of others, and of their traces.
        is_long: Whether load generators take their large sizes.
    """

    name: str
    conversations: Conversations
    scratch: Path
    rivals: Path
    is_long: bool = False


class Measurement:
    """Runs on a server and returns the figures of some rows.

    Args:
        run: Measures; the server may be restarted or stopped afterwards.
        rows: The rows that it fills.
        once: Whether one round is enough, for figures that noise hardly changes.
    """

    def __init__(
        self, run: Callable[[Server, Round], Mapping[str, Figure]], *rows: Row, once: bool = False
    ) -> None:
        self.run, self.rows, self.once = run, rows, once
        #: For ``--only``.
        self.name = run.__name__.removeprefix("_")


MILLISECONDS = "{:,.0f} ms"


def _warmth(server: Server, round_: Round) -> dict[str, float]:
    """Time to the first text: new conversation, the same again, its next turn, and another one."""
    messages = round_.conversations.begin(f"warmth {round_.name}")
    cold = server.ask(messages)
    identical = server.ask(messages)
    following = next_turn(messages, identical)
    next_ = server.ask(following)
    question = {"role": "user", "content": "How many days has a week?"}
    branch = server.ask([*following[:-1], question])
    return {
        "cold": 1000 * cold.first_s,
        "identical": 1000 * identical.first_s,
        "next_turn": 1000 * next_.first_s,
        "branch": 1000 * branch.first_s,
        "prompt_tokens": next_.prompt_tokens,
    }


WARMTH = Measurement(
    _warmth,
    Row("cold", "cold, first text", MILLISECONDS),
    Row("identical", "identical request again", MILLISECONDS),
    Row("next_turn", "next turn", MILLISECONDS),
    Row("branch", "next turn asked in another way", MILLISECONDS),
    Row("prompt_tokens", "tokens of that prompt", "{:,.0f}"),
)


STREAMS_TOKENS = 200
TOPICS = ("a fox", "a boat", "the sea", "a clock", "the moon")


def _story(round_: Round, topic: str) -> list[Message]:
    return [
        {"role": "user", "content": f"{round_.name}. Tell me a long story about {topic}."},
    ]


def _tokens_per_s(server: Server, stories: list[list[Message]]) -> float:
    begin = time.perf_counter()
    replies = server.ask_together(stories, STREAMS_TOKENS)
    return sum(reply.completion_tokens for reply in replies) / (time.perf_counter() - begin)


def _streams(server: Server, round_: Round) -> dict[str, float]:
    """Tokens per second of one stream and of four at once, prefill included."""
    one, *four = (_story(round_, topic) for topic in TOPICS)
    return {"one_stream": _tokens_per_s(server, [one]), "four_streams": _tokens_per_s(server, four)}


STREAMS = Measurement(
    _streams,
    Row("one_stream", "one stream", "{:.0f} tok/s"),
    Row("four_streams", "four streams", "{:.0f} tok/s"),
)


#: Seconds between an answer's end and the server's, so that write-behind can finish.
SETTLE_S = 3.0


def _restart(server: Server, round_: Round) -> dict[str, float]:
    """How much of a conversation is cached after a restart of the server?"""
    messages = round_.conversations.begin(f"restart {round_.name}")
    messages = next_turn(messages, server.ask(messages))
    time.sleep(SETTLE_S)
    server.kill()
    server.start()
    killed = server.ask(messages)
    messages = next_turn(messages, killed)
    time.sleep(SETTLE_S)
    server.stop()
    server.start()
    stopped = server.ask(messages)
    return {"sigkill": 1000 * killed.first_s, "sigterm": 1000 * stopped.first_s}


RESTART = Measurement(
    _restart,
    Row("sigterm", "next turn after SIGTERM and restart", MILLISECONDS),
    Row("sigkill", "next turn after SIGKILL and restart", MILLISECONDS),
)


WATCHED_S = 4.0
#: Pieces of text that the client reads before it disconnects.
PIECES_READ = 3
#: Token limit, above what the server generates during the measurement.
DISCONNECT_TOKENS = 4000


def _disconnect(server: Server, round_: Round) -> dict[str, float]:
    """How many tokens does a server compute after its client has disconnected?"""
    question = f"{round_.name}. Count from 1 to 1000."
    messages = [{"role": "user", "content": question}]
    server.leave_after(messages, max_tokens=DISCONNECT_TOKENS, pieces=PIECES_READ)
    before = server.cpu_s()
    time.sleep(WATCHED_S)
    return {"disconnect": server.cpu_s() - before}


DISCONNECT = Measurement(
    _disconnect,
    Row("disconnect", f"CPU in the {WATCHED_S:.0f} s after a client left mid-answer", "{:.2f} s"),
)


#: Seconds after the last token whose CPU time counts too.
AFTER_S = 1.0


def _cpu_s(server: Server, conversations: Sequence[Sequence[Message]]) -> float:
    before = server.cpu_s()
    server.ask_together(conversations)
    time.sleep(AFTER_S)
    return server.cpu_s() - before


def _duplicates(server: Server, round_: Round) -> dict[str, float]:
    """What do two identical requests at once cost, compared with one?"""
    one = round_.conversations.begin(f"alone {round_.name}")
    two = round_.conversations.begin(f"twice {round_.name}")
    alone_s = _cpu_s(server, [one])
    return {"alone": alone_s, "duplicates": _cpu_s(server, [two, two]) / alone_s}


DUPLICATES = Measurement(
    _duplicates,
    Row("alone", "CPU of one cold request", "{:.2f} s"),
    Row("duplicates", "CPU of two identical at once / one", "{:.2f} ×"),  # noqa: RUF001 - the sign for times
    once=True,
)


#: Long enough that different weights give different answers.
SWAPPED_TOKENS = 48


def _swapped(server: Server, round_: Round) -> dict[str, str]:
    """Does a server answer with the KV cache of weights that were replaced?"""
    model = copy_model(server.model, round_.scratch / "model")
    with server.sibling(model, round_.scratch / "data") as used:
        messages = round_.conversations.begin(f"swapped {round_.name}")
        messages = next_turn(messages, used.ask(messages))
        before = used.ask(messages, SWAPPED_TOKENS)
        time.sleep(SETTLE_S)
        used.stop()
        swap_weights(model)
        used.start()
        after = used.ask(messages, SWAPPED_TOKENS)
    with server.sibling(model, round_.scratch / "empty") as new:
        expected = new.ask(messages, SWAPPED_TOKENS)
    if before.text == expected.text:
        raise RuntimeError("both weights give the same answer, so the measurement shows nothing")
    right = after.text == expected.text
    return {"swapped": "recomputed" if right else f"stale KV ({after.cached_tokens} tokens)"}


SWAPPED = Measurement(
    _swapped,
    Row("swapped", "weights swapped under the same path", "{}"),
    once=True,
)


MEASUREMENTS: tuple[Measurement, ...] = (
    WARMTH,
    STREAMS,
    RESTART,
    DISCONNECT,
    DUPLICATES,
    SWAPPED,
)
