"""The running service conforms to its OpenAPI document, checked by schemathesis."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.support.processes.service import Service

pytestmark = [pytest.mark.e2e, pytest.mark.mlx, pytest.mark.slow, pytest.mark.timeout(1800)]

#: Statuses of valid and invalid requests; schemathesis itself would accept any 5xx of both. The
#: service and its model are ready before the run and stay so, hence no 5xx is accepted: neither
#: the documented 503 of an unavailable part, nor the 500 of a failure.
#: 404: the object in the path does not exist.
#: The operations below may refuse a valid request for a reason that no schema can express:
#: 400: ids of one batch must differ, a tool that must be called must be among the tools, an item
#: needs the fields of its type, a reference needs its target (also a turn of an agent), and
#: webhooks to receivers that the request names are disabled.
#: 409: the name or the idempotency key is taken, or a turn of the agent is open.
#: 429: the queue is full.
CONFIG = """
[checks]
not_a_server_error.expected-statuses = ["2xx", "4xx"]
positive_data_acceptance.expected-statuses = ["2xx", 404]
negative_data_rejection.expected-statuses = ["4xx"]

[[operations]]
include-operation-id = "createMessageBatch"
checks.positive_data_acceptance.expected-statuses = ["2xx", 400, 429]

[[operations]]
include-operation-id = "createJob"
checks.positive_data_acceptance.expected-statuses = ["2xx", 400, 409, 429]

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
checks.positive_data_acceptance.expected-statuses = ["2xx", 400, 404, 409]
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
