"""What do two identical requests at once cost, compared with one?"""

from __future__ import annotations

import time
from collections.abc import Sequence

from bench.comparison.chat import Message
from bench.comparison.measurements.base import Measurement, Round, Row
from bench.comparison.server import Server

#: Seconds after the last token whose CPU time counts too.
SETTLE_S = 1.0


def _cpu_s(server: Server, conversations: Sequence[Sequence[Message]]) -> float:
    before = server.cpu_s()
    server.ask_together(conversations)
    time.sleep(SETTLE_S)
    return server.cpu_s() - before


def _run(server: Server, round_: Round) -> dict[str, float]:
    one = round_.conversations.begin(f"alone {round_.name}")
    two = round_.conversations.begin(f"twice {round_.name}")
    alone_s = _cpu_s(server, [one])
    return {"alone": alone_s, "duplicates": _cpu_s(server, [two, two]) / alone_s}


DUPLICATES = Measurement(
    name="duplicates",
    rows=(
        Row(key="alone", title="CPU of one cold request", form="{:.2f} s"),
        Row(key="duplicates", title="CPU of two identical at once / one", form="{:.2f} ×"),  # noqa: RUF001 - the sign for times
    ),
    run=_run,
    once=True,
)
