"""What of a conversation is still warm when the server was ended and started again.

First by SIGKILL, with all that it had only in memory; then, the turn answered once more by whatever
it takes, by SIGTERM.
"""

from __future__ import annotations

import time

from bench.comparison.conversation import next_turn
from bench.comparison.measurements.base import MILLISECONDS, Measurement, Round, Row
from bench.comparison.server import Server

#: From the end of an answer to the end of the server: who writes behind may finish.
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
