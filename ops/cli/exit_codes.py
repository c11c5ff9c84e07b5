"""The exit codes in the help of the command line."""

from __future__ import annotations

from ops.exit_codes import MEANINGS, ExitCode

__all__ = ["EPILOG", "ExitCode"]

#: Last lines of each ``--help``.
EPILOG = "Exit codes: " + "; ".join(f"{code:d} {MEANINGS[code]}" for code in ExitCode) + "."
