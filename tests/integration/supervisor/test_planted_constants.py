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
        "from domain.webhook.send import WebhookCollector\n"
        "from ops.broker.items import ITEMS_TTL_S, RedisItemSink\n"
        "waits_s = WebhookCollector.__dataclass_fields__['waits_s'].default\n"
        "print(waits_s, ITEMS_TTL_S, RedisItemSink.__init__.__kwdefaults__['ttl_s'])"
    )
    planted = {f"{DELIVERY}.SCHEDULE_S": [1.0], "ops.broker.items.ITEMS_TTL_S": 2}
    done = _run(code, planted)
    assert done.stdout == "(1.0,) 2 2\n", done.stderr
    # Nothing of it stays in the cache of compiled modules.
    assert _run(code, {}).stdout.startswith("(5.0, ")


def test_name_that_is_no_constant_of_its_module_fails_the_import() -> None:
    done = _run(f"import {DELIVERY}", {f"{DELIVERY}.GONE": 1})
    assert done.returncode == 1
    assert f"{DELIVERY} has no constant GONE" in done.stderr
