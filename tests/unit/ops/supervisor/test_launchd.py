"""The launchd template agrees with what the supervisor needs."""

from __future__ import annotations

import plistlib
from pathlib import Path

from ops.settings import Settings
from ops.supervisor.parts import parts_of

_PLIST = Path(__file__).parents[4] / "ops" / "deploy" / "launchd" / "local.semantic.plist"


def test_launchd_waits_longer_than_the_drain_takes() -> None:
    job = plistlib.loads(_PLIST.read_bytes())
    drain_s = sum(part.grace_s for part in parts_of(Settings()).last_to_first())
    assert job["ExitTimeOut"] > drain_s
    assert job["ProgramArguments"][1] == "serve"
