"""``python -m worker.standby``: a worker that imports first and works once it is activated.

Imports take nine tenths of a worker's start. A standby has them behind it. It holds no lock, no
model, no connection and no memory of a GPU: it does not import MLX before its activation.
"""

from __future__ import annotations

import os
from importlib import import_module
from typing import Final

from ops.exit_codes import ExitCode, end_process
from ops.liveness.child import wait_for_activation
from ops.liveness.imports import resting_collector

#: Modules that ``worker.main`` imports, together with all libraries except MLX.
PRELOADED: Final = (
    "safetensors",
    "transformers.models.auto.tokenization_auto",
    "ops.adapters.event_log.migrate",
    "ops.adapters.event_log.sql_event_log",
    "ops.adapters.redis.control",
    "ops.adapters.redis.worker_requests",
    "ops.broker.address",
    "ops.logs",
    "ops.settings",
    "worker.actors",
    "worker.cachestore.tier",
    "worker.engine.engine",
    "worker.engine.grammar.channel_constraint",
    "worker.engine.grammar.constraints",
    "worker.engine.grammar.guidance",
    "worker.recording.cache_event_recorder",
    "worker.recording.worker_event_recorder",
)


def preload() -> None:
    """Import what a worker needs, except MLX."""
    # As mlx-lm does: transformers warns on stderr that there is no PyTorch.
    os.environ["TRANSFORMERS_NO_ADVISORY_WARNINGS"] = "1"
    with resting_collector():
        for name in PRELOADED:
            import_module(name)


def main() -> int:
    """Preload, wait for the activation and run a worker; return the exit code."""
    preload()
    if not wait_for_activation():
        return int(ExitCode.OK)
    from worker.main import main as run_worker  # noqa: PLC0415 - imports MLX

    return run_worker()


if __name__ == "__main__":
    end_process(main())
