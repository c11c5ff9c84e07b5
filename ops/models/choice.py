"""The id of a command that names its model explicitly.

``serve --model X`` and ``worker --model X`` are swaps to X. The command draws an id and hands it to
the worker, which records it. A later start of the worker by the same command has the same id and so
does not count as another choice.
"""

from __future__ import annotations

import os

from ops.clock import uuid7_hex

#: Environment variable with the id of the command; absent where no model was named.
CHOICE_ENV = "SEMANTIC_MODEL_CHOICE"


def choice_environment(*, is_explicit: bool) -> dict[str, str]:
    """Return the variables of the parts that a command starts.

    Args:
        is_explicit: Whether the command names the model.
    """
    return {CHOICE_ENV: uuid7_hex() if is_explicit else ""}


def given_choice() -> str:
    """Return the id of the command that started this process; empty if it named no model."""
    return os.environ.get(CHOICE_ENV, "")
