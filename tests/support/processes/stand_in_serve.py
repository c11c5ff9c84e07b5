"""``semantic serve`` with stand-ins for its parts.

Run as ``python -m tests.support.processes.stand_in_serve``.
"""

from __future__ import annotations

import sys

from ops.settings.settings import Settings, load_settings
from ops.supervisor.parts import API, BROKER, WORKER, WORKER_SILENCE_S, Part, Parts
from ops.supervisor.serve import serve

STANDBY_AFTER_S = 0.1


def stand_ins(settings: Settings) -> Parts:
    def part(name: str) -> Part:
        argv = (sys.executable, "-m", "tests.support.processes.stand_in", name)
        is_worker = name == WORKER
        return Part(
            name=name,
            argv=argv,
            grace_s=settings.server.drain_s,
            silence_max_s=WORKER_SILENCE_S if is_worker else 0,
            standby_argv=argv if is_worker and settings.jobs.keeps_standby else (),
            standby_after_s=STANDBY_AFTER_S,
        )

    return Parts(broker=part(BROKER), worker=part(WORKER), api=part(API))


if __name__ == "__main__":
    sys.exit(serve(load_settings(), stand_ins))
