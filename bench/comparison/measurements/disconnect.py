"""How many tokens does a server compute after its client has disconnected?"""

from __future__ import annotations

import time

from bench.comparison.measurements.base import Measurement, Round, Row
from bench.comparison.server import Server

WATCHED_S = 4.0
#: Pieces of text that the client reads before it disconnects.
PIECES_READ = 3
#: Token limit, above what the server generates during the measurement.
MAX_TOKENS = 4000


def _run(server: Server, round_: Round) -> dict[str, float]:
    question = f"{round_.name}. Count from 1 to 1000."
    messages = [{"role": "user", "content": question}]
    server.leave_after(messages, max_tokens=MAX_TOKENS, pieces=PIECES_READ)
    before = server.cpu_s()
    time.sleep(WATCHED_S)
    return {"disconnect": server.cpu_s() - before}


DISCONNECT = Measurement(
    name="disconnect",
    rows=(
        Row(
            key="disconnect",
            title=f"CPU in the {WATCHED_S:.0f} s after a client left mid-answer",
            form="{:.2f} s",
        ),
    ),
    run=_run,
)
