"""How much a server still computes for a client that is gone."""

from __future__ import annotations

import time

from bench.comparison.measurements.base import Measurement, Round, Row
from bench.comparison.server import Server

WATCHED_S = 4.0
#: Pieces of text that are heard before the client leaves.
HEARD = 3
#: More than can be generated while it is watched.
MAX_TOKENS = 4000


def _run(server: Server, round_: Round) -> dict[str, float]:
    question = f"{round_.name}. Count from 1 to 1000."
    server.leave_after([{"role": "user", "content": question}], max_tokens=MAX_TOKENS, pieces=HEARD)
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
