"""Other values for named constants in the processes of a service.

A limit that no operator changes is a constant without a setting. A test of a whole service that
needs a smaller one plants it: each process compiles the module of the constant with the value. A
constant that its module does not assign fails the import, so a renamed one cannot go unnoticed.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Final

#: The directory of the module that each process loads at its start.
_SITE: Final = str(Path(__file__).parents[1] / "planted")
_VARIABLE: Final = "PLANTED_CONSTANTS"


def with_constants(env: Mapping[str, str], values: Mapping[str, object]) -> dict[str, str]:
    """Return an environment in which constants have other values too.

    Args:
        env: May plant others already.
        values: By the whole name of the constant: numbers, texts, and lists, which become tuples.
    """
    planted_there: dict[str, dict[str, object]] = json.loads(env.get(_VARIABLE, "{}"))
    for whole, value in values.items():
        module, _, name = whole.rpartition(".")
        planted_there.setdefault(module, {})[name] = value
    return {**env, "PYTHONPATH": _SITE, _VARIABLE: json.dumps(planted_there)}
