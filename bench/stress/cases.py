"""The cases of ``bench.stress``: twelve of the plan, and three that time what users feel."""

from __future__ import annotations

import json
from typing import Final

from bench.chaos.run import SMALL_CACHES
from bench.stress import agents, bursts, resume, sustained
from bench.stress.run import Case

#: Places for more requests than the memory has room for.
_SMALL_MEMORY: Final = {
    "SEMANTIC_ENGINE__KV_BUDGET_MB": "5",
    "SEMANTIC_ENGINE__MAX_BATCH_SIZE": "64",
    "SEMANTIC_JOBS__MEMORY_WAIT_S": "1",
}
_SHORT_QUEUE: Final = {"SEMANTIC_JOBS__QUEUE_LIMIT": str(bursts.QUEUE_LIMIT)}
_KEYS: Final = {
    "SEMANTIC_API_KEY": agents.KEYS[0],
    "SEMANTIC_SERVER__API_KEYS": json.dumps(
        [f"agent-{number}={key}" for number, key in enumerate(agents.KEYS)]
    ),
}

PLAN: Final = (
    Case(
        name="concurrent",
        load="150 requests at once, of which 100 may wait",
        work=bursts.concurrent,
        minutes=1,
        env=_SHORT_QUEUE,
    ),
    Case(
        name="full",
        load="10 to 100 clients against 5 MB of memory for contexts",
        work=bursts.full,
        minutes=1.5,
        env=_SMALL_MEMORY,
    ),
    Case(
        name="steady",
        load="20 requests a second for a minute, answered or not",
        work=bursts.steady,
        minutes=4,
    ),
    Case(
        name="recovery",
        load="50 requests at once; 10 s later 5",
        work=bursts.recovery,
        minutes=1.5,
    ),
    Case(
        name="rapid",
        load="10 agents, 50 requests each",
        work=agents.rapid,
        minutes=2,
    ),
    Case(
        name="isolation",
        load="5 keys, 10 requests each, alone and all at once",
        work=agents.isolation,
        minutes=1,
        env=_KEYS,
        exact=True,
    ),
    Case(
        name="latency",
        load="100 requests, 20 at once",
        work=agents.latency,
        minutes=1,
    ),
    Case(
        name="hits",
        load="5 agents, 10 turns of a conversation each",
        work=agents.hits,
        minutes=1,
    ),
    Case(
        name="hour",
        load="2.5 requests a second for an hour",
        work=sustained.hour,
        minutes=61,
        env=SMALL_CACHES,
    ),
    Case(
        name="per-minute",
        load="5 agents, 10 requests a minute for 10 minutes",
        work=sustained.per_minute,
        minutes=10.5,
    ),
    Case(
        name="memory",
        load="3 requests a second for half an hour",
        work=sustained.memory,
        minutes=31,
        env=SMALL_CACHES,
    ),
    Case(
        name="drift",
        load="5 clients that always work, for 10 minutes",
        work=sustained.drift,
        minutes=11,
        env=SMALL_CACHES,
    ),
)
MORE: Final = (
    Case(
        name="conversations",
        load="5 agents of different habits for 5 minutes",
        work=sustained.conversations,
        minutes=6,
    ),
    Case(
        name="requests",
        load="1, 3, 5, 7 and 10 agents in turn, 40 requests each",
        work=agents.whole_requests,
        minutes=6,
    ),
    Case(
        name="resume",
        load="three conversations each of 2, 4, 8 and 16 thousand tokens",
        work=resume.resume,
        minutes=10,
    ),
)
CASES: Final = (*PLAN, *MORE)
