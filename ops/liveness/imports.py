"""Imports the modules of a process with the garbage collector at rest."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def resting_collector() -> Iterator[None]:
    """Import modules in this block: they stay, so the search for garbage finds none.

    The collector is off in the block. Afterwards it passes over everything that exists at the end
    of the block, so each later collection is shorter too.
    """
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        gc.enable()
