"""Every field of the SDKs' request types is honoured, refused by name, or harmless for a reason."""

from __future__ import annotations

import ast
import asyncio
import json
import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from anthropic.types import MessageCountTokensParams
from anthropic.types import message_create_params as messages
from anthropic.types.beta import MessageCountTokensParams as BetaMessageCountTokensParams
from anthropic.types.beta import message_create_params as beta_messages
from anthropic.types.beta.messages import BatchCreateParams as BetaMessageBatchParams
from anthropic.types.messages import BatchCreateParams as MessageBatchParams
from ollama._types import ChatRequest, EmbeddingsRequest, EmbedRequest, GenerateRequest
from openai.types import (
    BatchCreateParams,
    DecisionCreateParams,
    EmbeddingCreateParams,
    FileCreateParams,
    completion_create_params,
)
from openai.types.chat import completion_create_params as chat
from openai.types.conversations import ConversationCreateParams
from openai.types.responses import InputTokenCountParams
from openai.types.responses import response_compact_params as compaction
from openai.types.responses import response_create_params as responses

from tests.support.builders.api import fake_api
from tests.support.polling import scaled
from tests.support.sdk_fields import SdkField, walk

TESTS = Path(__file__).parents[1]
TABLE = Path(__file__).with_name("client_fields.toml")
PAGE = TESTS.parent / "docs" / "clients.md"
_TURN = {"role": "user", "content": "hi"}
_MESSAGES = {"model": "m", "max_tokens": 1, "messages": [_TURN]}
#: The date at the end of the type of a vendor's tool.
_DATE = re.compile(r"20\d{6}$")
VERDICTS = frozenset({"honoured", "refused", "harmless"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Surface:
    """An operation, the types of the SDK for its body, and a valid body."""

    path: str
    roots: tuple[Any, ...]
    base: Mapping[str, Any]
    table: str


SURFACES: Mapping[str, Surface] = {
    "messages": Surface(
        path="/v1/messages",
        roots=(
            beta_messages.MessageCreateParamsNonStreaming,
            messages.MessageCreateParamsNonStreaming,
        ),
        base=_MESSAGES,
        table="messages",
    ),
    "count_tokens": Surface(
        path="/v1/messages/count_tokens",
        roots=(BetaMessageCountTokensParams, MessageCountTokensParams),
        base={"model": "m", "messages": [_TURN]},
        table="messages",
    ),
    "message_batches": Surface(
        path="/v1/messages/batches",
        roots=(BetaMessageBatchParams, MessageBatchParams),
        base={"requests": [{"custom_id": "a", "params": _MESSAGES}]},
        table="message_batches",
    ),
    "chat": Surface(
        path="/v1/chat/completions",
        roots=(chat.CompletionCreateParamsNonStreaming,),
        base={"model": "m", "messages": [_TURN]},
        table="chat",
    ),
    "completions": Surface(
        path="/v1/completions",
        roots=(completion_create_params.CompletionCreateParamsNonStreaming,),
        base={"model": "m", "prompt": "hi"},
        table="completions",
    ),
    "responses": Surface(
        path="/v1/responses",
        roots=(responses.ResponseCreateParamsNonStreaming,),
        base={"model": "m", "input": "hi"},
        table="responses",
    ),
    "input_tokens": Surface(
        path="/v1/responses/input_tokens",
        roots=(InputTokenCountParams,),
        base={"model": "m", "input": "hi"},
        table="responses",
    ),
    "compact": Surface(
        path="/v1/responses/compact",
        roots=(compaction.ResponseCompactParams,),
        base={"model": "m", "input": "hi"},
        table="responses",
    ),
    "conversations": Surface(
        path="/v1/conversations", roots=(ConversationCreateParams,), base={}, table="responses"
    ),
    "decisions": Surface(
        path="/v1/decisions",
        roots=(DecisionCreateParams,),
        base={
            "model": "m",
            "input": "hi",
            "questions": [{"type": "predicate", "instructions": "It is short."}],
        },
        table="decisions",
    ),
    "embeddings": Surface(
        path="/v1/embeddings",
        roots=(EmbeddingCreateParams,),
        base={"model": "m", "input": "hi"},
        table="embeddings",
    ),
    "batches": Surface(path="/v1/batches", roots=(BatchCreateParams,), base={}, table="batches"),
    "ollama_chat": Surface(
        path="/api/chat",
        roots=(ChatRequest,),
        base={"model": "m", "messages": [_TURN]},
        table="ollama",
    ),
    "ollama_generate": Surface(
        path="/api/generate",
        roots=(GenerateRequest,),
        base={"model": "m", "prompt": "hi"},
        table="ollama",
    ),
    "ollama_embed": Surface(
        path="/api/embed",
        roots=(EmbedRequest,),
        base={"model": "m", "input": "hi"},
        table="ollama",
    ),
    "ollama_embeddings": Surface(
        path="/api/embeddings",
        roots=(EmbeddingsRequest,),
        base={"model": "m", "prompt": "hi"},
        table="ollama",
    ),
    "files": Surface(path="/v1/files", roots=(FileCreateParams,), base={}, table="files"),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """A line of the table.

    Attributes:
        kind: ``honoured``, ``refused`` or ``harmless``.
        text: The test, the status or the reason.
        value: What is sent in place of a sample; ``None`` for the sample.
        is_whole: Whether the types below the fields are left out.
        patterns: The fields.
    """

    kind: str
    text: str
    value: Any
    is_whole: bool
    patterns: tuple[str, ...]


@cache
def verdicts(table: str) -> tuple[Verdict, ...]:
    found = []
    for entry in tomllib.loads(TABLE.read_text())[table]["entries"]:
        (kind,) = VERDICTS & set(entry)
        patterns = tuple(
            f"{owner}.{name}"
            for line in entry["fields"]
            for owner, names in [line.split(": ")]
            for name in names.split()
        )
        found.append(
            Verdict(
                kind=kind,
                text=entry[kind],
                value=entry.get("value"),
                is_whole=kind != "honoured" or entry.get("whole", False),
                patterns=patterns,
            )
        )
    return tuple(found)


def verdict_of(table: str, key: str) -> Verdict | None:
    matches = (
        one for one in verdicts(table) if any(fnmatchcase(key, each) for each in one.patterns)
    )
    return next(matches, None)


@cache
def fields(name: str) -> tuple[SdkField, ...]:
    surface = SURFACES[name]

    def is_pruned(owner: str, field: str) -> bool:
        verdict = verdict_of(surface.table, f"{owner}.{field}")
        return verdict is not None and verdict.is_whole

    seen: dict[str, SdkField] = {}
    for root in surface.roots:
        for field in walk(root, surface.base, is_pruned):
            seen.setdefault(field.key, field)
    return tuple(seen.values())


@pytest.mark.parametrize("name", SURFACES)
def test_every_field_has_a_verdict(name: str) -> None:
    table = SURFACES[name].table
    assert [one.key for one in fields(name) if verdict_of(table, one.key) is None] == []


def test_every_pattern_has_a_field() -> None:
    for table in tomllib.loads(TABLE.read_text()):
        names = [name for name, surface in SURFACES.items() if surface.table == table]
        keys = {one.key for name in names for one in fields(name)}
        used = {id(verdict_of(table, key)) for key in keys}
        for verdict in verdicts(table):
            assert id(verdict) in used, f"{table}: {verdict.patterns} decides nothing"
            for pattern in verdict.patterns:
                found = any(fnmatchcase(key, pattern) for key in keys)
                assert found, f"{table}: no field is {pattern}"


def test_every_named_test_exists() -> None:
    for table in tomllib.loads(TABLE.read_text()):
        for verdict in verdicts(table):
            if verdict.kind == "honoured":
                path, _, name = verdict.text.partition("::")
                tree = ast.parse((TESTS / path).read_text())
                functions = {one.name for one in tree.body if isinstance(one, ast.FunctionDef)}
                assert name in functions, verdict.text


def _refused_row(table: str) -> str:
    """Return the row of the page with the refused fields of the operations of a table.

    A type with a date stands once, with a * for the date.
    """
    names = [name for name, surface in SURFACES.items() if surface.table == table]
    found: dict[str, set[str]] = {}
    for field in (one for name in names for one in fields(name)):
        verdict = verdict_of(table, field.key)
        if verdict is not None and verdict.kind == "refused":
            place = ".".join(part for part in field.path if isinstance(part, str))
            values = found.setdefault(place, set())
            if field.name == "type":
                values.add(f"`{_DATE.sub('*', field.sample)}`")
            elif verdict.value is not None:
                values.add(f"`{json.dumps(verdict.value)}`")
    listed = [f"`{at}`{': ' * bool(of)}{', '.join(sorted(of))}" for at, of in sorted(found.items())]
    paths = ", ".join(f"`{SURFACES[name].path}`" for name in names)
    return f"| {paths} | {'; '.join(listed)} |" if listed else ""


def test_the_page_lists_every_refused_field() -> None:
    page = PAGE.read_text().split("### Refused fields\n")[1].split("\n## ")[0]
    tables = dict.fromkeys(one.table for one in SURFACES.values())
    rows = [row for row in page.splitlines() if row.startswith("| `/")]
    assert rows == [row for table in tables if (row := _refused_row(table))]


def _is_named(path: tuple[str | int, ...], message: str) -> bool:
    """Whether an error names a field, its object or a part of it."""
    dotted = ".".join(map(str, path))
    whole = dotted.rpartition(".")[0] if path[-1] == "type" else dotted
    return whole in message


@pytest.mark.parametrize("name", SURFACES)
def test_a_refused_field_is_a_400_that_names_it(name: str) -> None:
    surface = SURFACES[name]

    async def scenario() -> list[str]:
        wrong = []
        async with fake_api() as api:
            api.worker_is("ready")
            for field in fields(name):
                verdict = verdict_of(surface.table, field.key)
                if verdict is None or verdict.kind != "refused":
                    continue
                sent = field.sample if verdict.value is None else verdict.value
                body = field.body(sent)
                try:
                    refusal = api.json("POST", surface.path, body, status=400)
                    reply = await asyncio.wait_for(refusal, scaled(5))
                except (AssertionError, TimeoutError):
                    wrong.append(f"{field.key}: no 400 for {json.dumps(body)}")
                    continue
                if not _is_named(field.path, json.dumps(reply)):
                    wrong.append(f"{field.key}: {field.path} is not in {reply}")
        return wrong

    assert asyncio.run(scenario()) == []
