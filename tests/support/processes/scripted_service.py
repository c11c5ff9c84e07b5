"""A whole service whose model says what is written down for it, and reads long prompts quickly."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tests.support.models.tiny_models import make_quick_demo
from tests.support.processes.service import Service


def line(after: str, say: str, **more: float) -> dict[str, Any]:
    """Return a line of the script; ``scripted_worker`` says what it means."""
    return {"after": after, "say": say} | more


def call(name: str, **arguments: object) -> str:
    """Return a tool call as the demo model writes it."""
    said = json.dumps({"name": name, "arguments": arguments})
    return f"<tool_call>\n{said}\n</tool_call>"


def scripted_service(directory: Path, lines: Sequence[dict[str, Any]], **env: str) -> Service:
    """Return a service that is not started yet.

    Args:
        directory: Empty; for its data, its model and its script.
        lines: What its model says; the first where no other fits.
        env: Further settings.
    """
    model = make_quick_demo(directory / "model")
    (directory / "script.json").write_text(json.dumps(list(lines)))
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
