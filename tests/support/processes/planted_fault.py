"""A service whose worker fails in a step when a test wants it.

The text of the switch file selects the fault of the next step; the fault removes the file.

- ``device``: an error of the GPU.
- ``hang``: the step does not return.
- ``hold``: the step does not return and holds the lock of the interpreter.
"""

from __future__ import annotations

import textwrap
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

_SITE = """
    import ctypes, importlib.abc, importlib.util, os, pathlib, sys, time

    MODULE = "worker.engine.mlx.runner"
    SWITCH = pathlib.Path(os.environ["PLANTED_FAULT"])
    GATE = SWITCH.with_suffix(".gate")
    PAUSE_S = 0.05

    class Finder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
        def find_spec(self, name, path, target=None):
            if name != MODULE:
                return None
            sys.meta_path.remove(self)
            spec = importlib.util.find_spec(name)
            self.loader, spec.loader = spec.loader, self
            return spec

        def create_module(self, spec):
            return None

        def exec_module(self, module):
            self.loader.exec_module(module)
            step, done = module.BatchRunner.step, 0

            def may_run(runner):
                nonlocal done
                try:
                    rows, most = map(int, GATE.read_text().split())
                except FileNotFoundError:
                    done = 0
                    return True
                decoding, admitted = runner.sequences.decoding, len(runner._remaining)
                if decoding < rows:
                    return decoding < max(1, admitted)
                done += 1
                return done <= most

            def failing(runner):
                if SWITCH.exists():
                    fault = SWITCH.read_text()
                    SWITCH.unlink()
                    if fault == "device":
                        raise RuntimeError("[METAL] Command buffer execution failed: planted.")
                    (time.sleep if fault == "hang" else ctypes.PyDLL(None).sleep)(600)
                if may_run(runner):
                    return step(runner)
                time.sleep(PAUSE_S)
                return module.StepResult([])

            module.BatchRunner.step = failing

    sys.meta_path.insert(0, Finder())
"""


class PlantedFault:
    """The switch of the faults.

    Args:
        directory: Holds the switch file and the module that each process loads at its start.
    """

    def __init__(self, directory: Path) -> None:
        site = directory / "planted"
        site.mkdir()
        (site / "sitecustomize.py").write_text(textwrap.dedent(_SITE))
        self._switch = directory / "fault"
        self.environment = {"PYTHONPATH": str(site), "PLANTED_FAULT": str(self._switch)}

    @contextmanager
    def gate(self, *, rows: int, steps: int) -> Iterator[None]:
        """Let a batch take so many steps and no more in the block, so that no job ends in it.

        Args:
            rows: Sequences that decode before the steps count; until then prompts are read only.
            steps: Each yields a token of each row, or a few.
        """
        gate = self._switch.with_suffix(".gate")
        written = gate.with_suffix(".new-gate")
        written.write_text(f"{rows} {steps}")
        written.replace(gate)
        try:
            yield
        finally:
            gate.unlink()

    def trigger(self, fault: str) -> None:
        """Let the next step fail."""
        written = self._switch.with_suffix(".new")
        written.write_text(fault)
        written.replace(self._switch)
