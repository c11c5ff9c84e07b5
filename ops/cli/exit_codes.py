"""The exit codes as the command line shows them."""

from __future__ import annotations

from ops.exit_codes import MEANINGS, ExitCode

__all__ = ["EPILOG", "ExitCode"]

#: Ends every ``--help``.
EPILOG = "Exit codes: " + "; ".join(f"{code:d} {MEANINGS[code]}" for code in ExitCode) + "."
