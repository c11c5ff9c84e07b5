"""A whole service whose model follows a script and prefills long prompts quickly."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tests.support.models.tiny_models import make_quick_demo
from tests.support.processes.service import Service

#: A text of more than 5,000 tokens; at ten a second it outlasts every test.
ENDLESS = " ".join(map(str, range(5000)))
ENDLESS_PACE_S = 0.1


def line(after: str, text: str | None, **more: float) -> dict[str, Any]:
    """Return a line of the script; ``scripted_worker`` describes its fields."""
    return {"after": after, "text": text} | more


def call(name: str, **arguments: object) -> str:
    """Return a tool call as the demo model writes it."""
    body = json.dumps({"name": name, "arguments": arguments})
    return f"<tool_call>\n{body}\n</tool_call>"


def write_script(directory: Path, lines: Sequence[dict[str, Any]]) -> None:
    """Write the script that ``scripted_worker`` reads where ``SCRIPT_DIR`` is this directory."""
    draft = directory / "script.json.new"
    draft.write_text(json.dumps(list(lines)))
    draft.replace(directory / "script.json")  # it may be read at any time


def scripted_service(directory: Path, lines: Sequence[dict[str, Any]], **env: str) -> Service:
    """Return a service that is not started yet.

    Args:
        directory: Empty; holds its data, its model and its script.
        lines: The script.
        env: Further settings.
    """
    model = make_quick_demo(directory / "model")
    write_script(directory, lines)
    return Service(
        directory / "data",
        env={
            "SCRIPT_DIR": str(directory),
            "SEMANTIC_MODEL__ID": str(model),
            "SEMANTIC_MODEL__NAME": "scripted",
        }
        | env,
        command=("-m", "tests.support.processes.scripted_serve"),
    )
