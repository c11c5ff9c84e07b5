"""Does a server answer with the KV cache of weights that were replaced?

Path and configuration stay the same. The answer to the next turn must be that of a server with an
empty cache.
"""

from __future__ import annotations

import time

from bench.comparison.conversation import next_turn
from bench.comparison.measurements.base import Measurement, Round, Row
from bench.comparison.measurements.restart import SETTLE_S
from bench.comparison.model_copy import copy_model, swap_weights
from bench.comparison.server import Server

#: Long enough that different weights give different answers.
MAX_TOKENS = 48


def _run(server: Server, round_: Round) -> dict[str, str]:
    model = copy_model(server.model, round_.scratch / "model")
    with server.sibling(model, round_.scratch / "data") as used:
        messages = round_.conversations.begin(f"swapped {round_.name}")
        messages = next_turn(messages, used.ask(messages))
        before = used.ask(messages, MAX_TOKENS)
        time.sleep(SETTLE_S)
        used.stop()
        swap_weights(model)
        used.start()
        after = used.ask(messages, MAX_TOKENS)
    with server.sibling(model, round_.scratch / "empty") as new:
        expected = new.ask(messages, MAX_TOKENS)
    if before.text == expected.text:
        raise RuntimeError("both weights give the same answer, so the measurement shows nothing")
    right = after.text == expected.text
    return {"swapped": "recomputed" if right else f"stale KV ({after.cached_tokens} tokens)"}


SWAPPED = Measurement(
    name="swapped",
    rows=(Row(key="swapped", title="weights swapped under the same path", form="{}"),),
    run=_run,
    once=True,
)
