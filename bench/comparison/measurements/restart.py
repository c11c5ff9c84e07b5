"""How much of a conversation is cached after a restart of the server?

First after SIGKILL, when data in memory is lost; then, after another answered turn, after SIGTERM.
"""

from __future__ import annotations

import time

from bench.comparison.conversation import next_turn
from bench.comparison.measurements.base import MILLISECONDS, Measurement, Round, Row
from bench.comparison.server import Server

#: Seconds between an answer's end and the server's, so that write-behind can finish.
SETTLE_S = 3.0


def _run(server: Server, round_: Round) -> dict[str, float]:
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
    name="restart",
    rows=(
        Row(key="sigterm", title="next turn after SIGTERM and restart", form=MILLISECONDS),
        Row(key="sigkill", title="next turn after SIGKILL and restart", form=MILLISECONDS),
    ),
    run=_run,
)
