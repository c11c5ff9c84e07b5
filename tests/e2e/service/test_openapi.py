"""The running service keeps what its OpenAPI document says, checked by schemathesis."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.support.processes.service import Service

pytestmark = [pytest.mark.e2e, pytest.mark.mlx, pytest.mark.slow, pytest.mark.timeout(1800)]

#: What no schema can say and a valid request may still be refused for with 400: ids of one batch
#: must differ, a tool that must be called must be among the tools, items need what their
#: type needs, what one refers to must be there (a turn of an agent too), and nobody else is
#: called here.
CONFIG = """
[[operations]]
include-operation-id = "createMessageBatch"
checks.positive_data_acceptance.expected-statuses = ["2xx", 400, 429]

[[operations]]
include-operation-id = "createJob"
checks.positive_data_acceptance.expected-statuses = ["2xx", 400, 409, 429]

[[operations]]
include-operation-id = "generateTurn"
checks.positive_data_acceptance.expected-statuses = ["2xx", 400, 404, 409, 429]

[[operations]]
include-operation-id = "createChatCompletion"
checks.positive_data_acceptance.expected-statuses = ["2xx", 400, 409, 429]

[[operations]]
include-operation-id = "createCompletion"
checks.positive_data_acceptance.expected-statuses = ["2xx", 400, 409, 429]

[[operations]]
include-operation-id = "createResponse"
checks.positive_data_acceptance.expected-statuses = ["2xx", 400, 409, 429]

[[operations]]
include-operation-id = "generateTurn"
checks.positive_data_acceptance.expected-statuses = ["2xx", 400, 404, 409, 429]

[[operations]]
include-operation-id = "forkAgent"
checks.positive_data_acceptance.expected-statuses = ["2xx", 400, 404, 409, 429]
"""


def test_schemathesis_finds_no_failure(own_service: Callable[..., Service], tmp_path: Path) -> None:
    (tmp_path / "schemathesis.toml").write_text(CONFIG)
    service = own_service(
        SEMANTIC_JOBS__MAX_TOKENS_DEFAULT="8",
        SEMANTIC_WEBHOOKS__FROM_REQUESTS="false",
        # Many requests allow a million tokens, and not every answer to noise ends by itself.
        SEMANTIC_MODEL__CONTEXT_LENGTH="4096",
    )
    done = subprocess.run(
        [
            str(Path(sys.executable).with_name("schemathesis")),
            "run",
            f"{service.base_url}/openapi.json",
            "--max-examples=10",
            "--seed=1",
            "--request-timeout=300",
            "--no-color",
        ],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
        timeout=1700,
    )
    assert done.returncode == 0, done.stdout[-8000:]
    assert service.stop() == 0
