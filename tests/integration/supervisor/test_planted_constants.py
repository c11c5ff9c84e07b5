"""The constants that tests plant in the processes of a service."""

from __future__ import annotations

import os
import subprocess
import sys

from tests.support.processes.planted_constants import with_constants

DELIVERY = "domain.webhook.delivery"


def _run(code: str, constants: dict[str, object]) -> subprocess.CompletedProcess[str]:
    env = with_constants(dict(os.environ), constants)
    return subprocess.run(
        [sys.executable, "-c", code], env=env, capture_output=True, text=True, check=False
    )


def test_module_and_those_that_import_from_it_have_the_planted_value() -> None:
    code = (
        "from domain.webhook.delivery import SCHEDULE_S, TRY_S\n"
        "from ops.adapters.webhooks.sender import HttpWebhookSender\n"
        "print(SCHEDULE_S, TRY_S, HttpWebhookSender.__init__.__kwdefaults__['timeout_s'])"
    )
    done = _run(code, {f"{DELIVERY}.SCHEDULE_S": [1.0], f"{DELIVERY}.TRY_S": 2.0})
    assert done.stdout == "(1.0,) 2.0 2.0\n", done.stderr
    # Nothing of it stays in the cache of compiled modules.
    assert _run(code, {}).stdout.startswith("(5.0, ")


def test_name_that_is_no_constant_of_its_module_fails_the_import() -> None:
    done = _run(f"import {DELIVERY}", {f"{DELIVERY}.GONE": 1})
    assert done.returncode == 1
    assert f"{DELIVERY} has no constant GONE" in done.stderr
