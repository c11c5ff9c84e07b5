"""Answers under the schemas of the JSON Schema Test Suite, checked by another implementation.

The suite comes with the source package of ``jsonschema``. A schema is refused by name, or its
answer is valid: nothing between. ``--log-cli-level=INFO`` prints the counts.
"""

from __future__ import annotations

import json
import logging
import subprocess
import sys
import tarfile
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import jsonschema_rs
import pytest

from tests.support.clients.npm import missing
from tests.support.polling import scaled
from tests.support.processes.service import Service

pytestmark = pytest.mark.nightly
LOG = logging.getLogger(__name__)
SUITE = "jsonschema==4.26.0"
SHA256 = "0c26707e2efad8aa1bfc5b7ce170f3fccc2e4918ff85989ba9ffa9facb2be326"
FOLDER = "json/tests/draft2020-12"
#: The keywords that docs/structured-output.md names as supported, as the suite names its files.
SUPPORTED = (
    *("additionalProperties", "allOf", "anyOf", "const", "defs", "enum", "exclusiveMaximum"),
    *("exclusiveMinimum", "items", "maxItems", "maxLength", "maximum", "minItems", "minLength"),
    *("minimum", "multipleOf", "pattern", "patternProperties", "prefixItems", "properties", "ref"),
    *("required", "type", "maxProperties", "minProperties"),
)
#: Those that it names as refused.
REFUSED = ("if-then-else", "not", "uniqueItems", "contains", "dependentSchemas", "unevaluatedItems")
AT_ONCE = 4
#: Of the schemas with supported keywords only, so many are answered and not refused, at least.
ANSWERED_SHARE = 0.6


@pytest.fixture(scope="module")
def suite(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder of the suite for the draft that the engine enforces."""
    folder = tmp_path_factory.mktemp("suite")
    pinned = folder / "requirements.txt"
    pinned.write_text(f"{SUITE} --hash=sha256:{SHA256}\n")
    command = [
        *(sys.executable, "-m", "pip", "download", "--no-deps", "--no-binary", ":all:"),
        *("--disable-pip-version-check", "--require-hashes", "-r", str(pinned), "-d", str(folder)),
    ]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=scaled(300))
    if done.returncode != 0:
        missing(f"pip could not download {SUITE}: {done.stderr[-500:]}")
    with tarfile.open(next(folder.glob("*.tar.gz"))) as archive:
        archive.extractall(folder, filter="data")
    return next(folder.glob(f"*/{FOLDER}"))


def schemas(suite: Path, keywords: tuple[str, ...]) -> list[tuple[str, Any]]:
    """Return the schemas of the files of keywords, with their names."""
    return [
        (f"{keyword}: {group['description']}", group["schema"])
        for keyword in keywords
        for group in json.loads((suite / f"{keyword}.json").read_text())
        if isinstance(group["schema"], dict)
    ]


def ask(service: Service, schema: dict[str, Any]) -> tuple[str, str]:
    """Return what became of a strict request: refused, valid or invalid; and the words of it."""
    form = {"name": "answer", "schema": schema, "strict": True}
    body = {
        "model": "semantic-demo",
        "temperature": 0,
        "max_tokens": 96,
        "messages": [{"role": "user", "content": "Answer in JSON."}],
        "response_format": {"type": "json_schema", "json_schema": form},
    }
    url = f"{service.base_url}/v1/chat/completions"
    reply = httpx.post(url, json=body, timeout=scaled(120))
    if reply.status_code == 400:
        return "refused", reply.json()["error"]["message"]
    assert reply.status_code == 200, reply.text
    text = reply.json()["choices"][0]["message"]["content"]
    try:
        valid = jsonschema_rs.Draft202012Validator(schema).is_valid(json.loads(text))
    except ValueError:
        valid = False
    return ("valid" if valid else "invalid"), text


def outcomes(
    service: Service, found: list[tuple[str, Any]]
) -> tuple[Counter[str], dict[str, tuple[str, Any]]]:
    """Return how often each outcome came, and the invalid answers with their schemas."""
    with ThreadPoolExecutor(AT_ONCE) as pool:
        results = list(pool.map(lambda one: ask(service, one[1]), found))
    wrong = {
        name: (text, schema)
        for (name, schema), (outcome, text) in zip(found, results, strict=True)
        if outcome == "invalid"
    }
    return Counter(outcome for outcome, _ in results), wrong


def test_answers_are_valid_or_their_schema_is_refused(service: Service, suite: Path) -> None:
    found = schemas(suite, SUPPORTED)
    counts, wrong = outcomes(service, found)
    LOG.info("%d schemas of %d supported keywords: %s", len(found), len(SUPPORTED), dict(counts))
    assert not wrong
    assert counts["valid"] / len(found) >= ANSWERED_SHARE, counts


def test_keywords_that_are_not_enforced_are_refused_by_name(service: Service, suite: Path) -> None:
    found = schemas(suite, REFUSED)
    counts, wrong = outcomes(service, found)
    LOG.info("%d schemas of %d refused keywords: %s", len(found), len(REFUSED), dict(counts))
    assert not wrong
    assert counts["refused"] == len(found), counts
