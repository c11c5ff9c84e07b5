"""Measures in a process of its own: ``python -m bench.memory.child JSON`` prints JSON.

The parent's side is ``run_child``, or ``Child`` for a process that is killed after it has answered.
"""

from __future__ import annotations

import dataclasses
import json
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from bench.memory import killed, long_context, rotation
from bench.memory.agents import Workload

#: Longest run of a child, in seconds.
CHILD_S = 3600.0
_CASES: Mapping[str, Callable[..., Any]] = {
    "rotation": rotation.run_agents,
    "killed_before": killed.turns_in_memory,
    "killed_after": killed.turns_after_kill,
    "long_memory": long_context.turns_in_memory,
    "long_disk": long_context.turn_from_disk,
    "long_busy": long_context.turn_beside_streams,
}


class Child:
    """A process that measures one case, prints its figures and waits to be ended.

    Args:
        case: Name of the case.
        directory: Its block store.
        workload: Of the agents.
        given: Further arguments.
    """

    def __init__(self, case: str, directory: Path, workload: Workload, **given: object) -> None:
        payload = {
            "case": case,
            "directory": str(directory),
            "workload": dataclasses.asdict(workload),
            "given": given,
        }
        self._process = subprocess.Popen(
            [sys.executable, "-m", "bench.memory.child", json.dumps(payload)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def figures(self) -> Any:
        """Wait for the figures.

        Raises:
            RuntimeError: The process ended without them.
        """
        assert self._process.stdout is not None, "it is a pipe"
        for line in self._process.stdout:
            if line.startswith("{"):
                return json.loads(line)["figures"]
        msg = f"the measurement ended with {self._process.wait()}; see its log above"
        raise RuntimeError(msg)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Kill the process."""
        self._process.kill()
        self._process.wait()
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                pipe.close()


def run_child(case: str, directory: Path, workload: Workload, **given: object) -> Any:
    """Return the figures of a case, measured in a process of its own."""
    with Child(case, directory, workload, **given) as child:
        return child.figures()


def main() -> None:
    """Measure one case, print its figures, and wait for the parent."""
    payload = json.loads(sys.argv[1])
    figures = _CASES[payload["case"]](
        directory=Path(payload["directory"]),
        workload=Workload(**payload["workload"]),
        **payload["given"],
    )
    print(json.dumps({"figures": figures}, default=dataclasses.asdict), flush=True)
    sys.stdin.read()


if __name__ == "__main__":
    main()
