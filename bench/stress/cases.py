"""The twelve cases of ``bench.stress``."""

from __future__ import annotations

import json
from typing import Final

from bench.chaos.run import SHORT_ITEMS, SMALL_CACHES
from bench.stress import agents, bursts, sustained
from bench.stress.run import Case
from tests.support.processes.planted_constants import with_constants

#: Places for more requests than the memory has room for.
_SMALL_MEMORY: Final = with_constants(
    {"SEMANTIC_ENGINE__KV_BUDGET_MB": "5", "SEMANTIC_ENGINE__MAX_BATCH_SIZE": "64"},
    {"api.access.limits.MEMORY_WAIT_S": 1.0},
)
_SMALL_CACHES: Final = with_constants(SMALL_CACHES, SHORT_ITEMS)
_SHORT_QUEUE: Final = {"SEMANTIC_JOBS__QUEUE_LIMIT": str(bursts.QUEUE_LIMIT)}
_KEYS: Final = {
    "SEMANTIC_API_KEY": agents.KEYS[0],
    "SEMANTIC_SERVER__API_KEYS": json.dumps(
        [f"agent-{number}={key}" for number, key in enumerate(agents.KEYS)]
    ),
}

CASES: Final = (
    Case(bursts.concurrent, minutes=1, env=_SHORT_QUEUE),
    Case(bursts.full, minutes=1.5, env=_SMALL_MEMORY),
    Case(bursts.steady, minutes=4),
    Case(bursts.recovery, minutes=1.5),
    Case(agents.rapid, minutes=2),
    Case(agents.isolation, minutes=1, env=_KEYS, exact=True),
    Case(agents.latency, minutes=1),
    Case(agents.hits, minutes=1),
    Case(sustained.hour, minutes=61, env=_SMALL_CACHES),
    Case(sustained.per_minute, minutes=10.5),
    Case(sustained.memory, minutes=31, env=_SMALL_CACHES),
    Case(sustained.drift, minutes=11, env=_SMALL_CACHES),
)
