"""``semantic serve`` whose model follows a script.

Run as ``python -m tests.support.processes.scripted_serve``.

Everything is real, the network and its caches too; only what may be drawn is one token at a time.
See ``scripted_worker``.
"""

from __future__ import annotations

import sys
from dataclasses import replace

from ops.settings.settings import Settings, load_settings
from ops.supervisor.parts import Parts, parts_of
from ops.supervisor.serve import serve

SCRIPTED_WORKER = "tests.support.processes.scripted_worker"


def scripted(settings: Settings) -> Parts:
    parts = parts_of(settings)
    argv = (sys.executable, "-m", SCRIPTED_WORKER)
    return replace(parts, worker=replace(parts.worker, argv=argv))


if __name__ == "__main__":
    sys.exit(serve(load_settings(), scripted))
