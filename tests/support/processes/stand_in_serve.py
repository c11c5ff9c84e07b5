"""``semantic serve`` with stand-ins for its parts.

Run as ``python -m tests.support.processes.stand_in_serve``.
"""

from __future__ import annotations

import sys

from ops.settings import Settings, load_settings
from ops.supervisor.parts import API, BROKER, WORKER, Part, Parts
from ops.supervisor.serve import serve


def stand_ins(settings: Settings) -> Parts:
    def part(name: str) -> Part:
        argv = (sys.executable, "-m", "tests.support.processes.stand_in", name)
        silence_s = settings.jobs.worker_silence_s if name == WORKER else 0
        return Part(name=name, argv=argv, grace_s=settings.server.drain_s, silence_max_s=silence_s)

    return Parts(broker=part(BROKER), worker=part(WORKER), api=part(API))


if __name__ == "__main__":
    sys.exit(serve(load_settings(), stand_ins))
