"""A running service conforms to its OpenAPI document, and bad bodies leave nothing behind.

The document is checked by schemathesis; the bodies are a slice of the corpus of ``bench.fuzz``.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from api.http.operation import Place
from api.operations import OPERATIONS
from bench.fuzz.__main__ import GROWTH_MAX, WORKER_GROWTH_MAX, Run
from tests.support.polling import scaled
from tests.support.processes.service import Service

pytestmark = pytest.mark.timeout(scaled(1800))

BODIES = 300
CONNECTIONS = 100
#: Operations that refuse a valid body with 400 for a reason that no schema can express.
REFUSALS = {
    "createMessage": "a tool that must be called must be among the tools",
    "createJob": "webhooks that requests name are disabled; unique excludes an idempotency key",
    **dict.fromkeys(("cancelJobs", "retryJobs"), "a filter needs a field, and since is an instant"),
    "createMessageBatch": "ids of one batch must differ, and its start must be near",
    "createBatch": "its start must be near",
    "createSchedule": "the expression must have instants, and the zone must exist",
    "createChatCompletion": "a tool that must be called must be among the tools",
    "createCompletion": "best_of must equal n, and echo excludes suffix and logprobs",
    "createEmbedding": "the model must compute vectors",
    "createResponse": "an item needs the fields of its type and the target of its reference",
    "countInputTokens": "an item needs the fields of its type and the target of its reference",
    "compactResponse": "there must be items, and the model must find words for them",
    "createConversation": "an item needs the fields of its type",
    "createConversationItems": "an item needs the fields of its type",
    "generateTurn": "the first message must not be an answer",
    "forkAgent": "the turn must exist",
    "forkJob": "the answer must have the token, and its model the rest",
    "pullModel": "the name must be an id of the hub",
    "tuneEngine": "a value must be named",
    "ollamaChat": "top_logprobs needs logprobs, and images have a known format",
    "ollamaGenerate": "raw and suffix exclude system, format and think",
    "ollamaEmbed": "the model must compute vectors",
    "ollamaEmbeddings": "the model must compute vectors",
    "ollamaShow": "the model must be named by one of two fields",
    **dict.fromkeys(
        ("tokenize", "tokenizeV1"), "the text must be in one of three fields, and render"
    ),
    **dict.fromkeys(
        ("detokenize", "detokenizeV1"),
        "the ids must be in one of two fields, and in the vocabulary",
    ),
    **dict.fromkeys(("rerank", "rerankUnversioned"), "the model must compute vectors"),
}


def _config() -> str:
    """Return the statuses that schemathesis accepts.

    A valid request may fail with the statuses that its operation documents itself. No 5xx is among
    them, though schemathesis accepts every 5xx by default: the service is ready before the run
    and stays so.
    """
    parts = [
        "[checks]",
        'not_a_server_error.expected-statuses = ["2xx", "4xx"]',
        'negative_data_rejection.expected-statuses = ["4xx"]',
    ]
    for operation in OPERATIONS:
        statuses = {status for status in operation.responses if status >= 400}
        if any(parameter.place is Place.PATH for parameter in operation.parameters):
            statuses.add(404)
        if operation.id in REFUSALS:
            statuses.add(400)
        assert max(statuses, default=0) < 500
        accepted = json.dumps(["2xx", *sorted(statuses)])
        parts += [
            "[[operations]]",
            f'include-operation-id = "{operation.id}"',
            f"checks.positive_data_acceptance.expected-statuses = {accepted}",
            f"enabled = {json.dumps(not operation.stops_work)}",
        ]
    return "\n".join(parts)


@pytest.fixture(scope="module")
def terse(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    """A service whose answers are short unless a request has a limit."""
    running = Service(
        tmp_path_factory.mktemp("terse") / "data",
        env={
            "SEMANTIC_JOBS__MAX_TOKENS_DEFAULT": "2",
            "SEMANTIC_WEBHOOKS__FROM_REQUESTS": "false",
            # Many requests allow a million tokens, and not every answer to noise ends by itself.
            "SEMANTIC_MODEL__CONTEXT_LENGTH": "4096",
            # Few random names are those of models.
            "SEMANTIC_MODELS__FOLLOW": '["*"]',
            # No download begins, wherever the test runs.
            "HF_ENDPOINT": "http://127.0.0.1:9",
        },
    ).start()
    yield running
    assert running.stop() == 0, running.log()


def test_bad_bodies_get_typed_answers_and_leave_nothing_behind(terse: Service) -> None:
    run = Run(terse, seed=11, bodies=BODIES, connections=CONNECTIONS)
    grown_bytes = run.send_all(clients=4)
    assert run.faults == []
    assert sum(run.statuses.values()) == BODIES + CONNECTIONS
    assert run.statuses["400"] > BODIES // 4
    assert grown_bytes["api"] < GROWTH_MAX
    assert grown_bytes["worker"] < WORKER_GROWTH_MAX


def test_schemathesis_finds_no_failure(
    terse: Service, tmp_path: Path, pytestconfig: pytest.Config
) -> None:
    is_nightly = pytestconfig.getoption("--nightly")
    examples = 25 if is_nightly else 2
    # The enumeration of every bound takes longer than the rest, and finds the same each time.
    phases = "examples,coverage,fuzzing,stateful" if is_nightly else "examples,fuzzing,stateful"
    (tmp_path / "schemathesis.toml").write_text(_config())
    done = subprocess.run(
        [
            str(Path(sys.executable).with_name("schemathesis")),
            "run",
            f"{terse.base_url}/openapi.json",
            f"--max-examples={examples}",
            f"--phases={phases}",
            "--seed=1",
            "--request-timeout=300",
            "--no-color",
        ],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
        timeout=scaled(1700),
    )
    assert done.returncode == 0, done.stdout[-8000:]
