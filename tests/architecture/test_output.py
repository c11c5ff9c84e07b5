"""Commands print through ``ops.cli.output``, which shows control characters."""

from __future__ import annotations

import re
from pathlib import Path

_COMMANDS = Path(__file__).parents[2] / "ops" / "cli"
_OUTPUT = re.compile(r"typer\.(?:s?echo)\(|\bprint\(|sys\.std(?:out|err)\.(?:write|buffer)")


def test_no_other_module_writes_to_a_stream() -> None:
    found = [
        f"{file.relative_to(_COMMANDS)}: {line.strip()}"
        for file in sorted(_COMMANDS.rglob("*.py"))
        if file.name != "output.py"
        for line in file.read_text().splitlines()
        if _OUTPUT.search(line) and "console.print(_line(event)" not in line
    ]
    assert found == []
