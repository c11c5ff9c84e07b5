"""What a measurement of a server is, and those of warm requests and of restarts."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from bench.comparison.conversation import Conversations, next_turn
from bench.comparison.server import Server

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
    """

    def __init__(self, run: Callable[[Server, Round], Mapping[str, Figure]], *rows: Row) -> None:
        self.run, self.rows = run, rows
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
