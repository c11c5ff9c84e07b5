"""Lines to paste that connect clients to this service.

The banner of ``semantic serve``, ``GET /admin/clients``, the page and ``docs/clients.md`` show
them.
"""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from ops.clients.claude_code import (
    CLIENT_TIMEOUT_MS,
    FEW_TOOLS,
    KEY_VARIABLE,
    NO_KEY,
    ServedModel,
    environment,
    shell_lines,
)

#: Name of the variable that holds the key of the service.
KEY_NAME: Final = KEY_VARIABLE.removeprefix("$")
_QUESTION: Final = "Hello!"
_ANSWER_TOKENS: Final = 64


class Language(StrEnum):
    """The language of lines to paste."""

    SHELL = "shell"
    PYTHON = "python"
    TOML = "toml"


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientSetUp:
    """How to connect one client.

    Attributes:
        note: Where the lines belong.
    """

    id: str
    title: str
    note: str
    language: Language
    code: str


def client_set_ups(
    base_url: str, model: ServedModel, *, keyed: bool = False
) -> tuple[ClientSetUp, ...]:
    """Return the lines for every client.

    Args:
        base_url: Of the service, without ``/v1``.
        keyed: Whether the service needs a key; the lines then read it from ``SEMANTIC_API_KEY``.
    """
    return (
        ClientSetUp(
            id="claude-code",
            title="Claude Code",
            note="On this machine: semantic claude. Elsewhere, in a shell:",
            language=Language.SHELL,
            code="\n".join(list(claude_code_lines(base_url, model, keyed=keyed))[1:]),
        ),
        ClientSetUp(
            id="codex",
            title="Codex",
            note="In ~/.codex/config.toml:",
            language=Language.TOML,
            code=_codex(base_url, model, keyed=keyed),
        ),
        ClientSetUp(
            id="openai-sdk",
            title="OpenAI SDK",
            note="In Python; other languages take the same base URL:",
            language=Language.PYTHON,
            code=_sdk(
                "OpenAI",
                f"{base_url}/v1",
                "chat.completions.create",
                "choices[0].message.content",
                model.id,
                keyed=keyed,
            ),
        ),
        ClientSetUp(
            id="anthropic-sdk",
            title="Anthropic SDK",
            note="In Python; other languages take the same base URL:",
            language=Language.PYTHON,
            code=_sdk(
                "Anthropic", base_url, "messages.create", "content[0].text", model.id, keyed=keyed
            ),
        ),
        ClientSetUp(
            id="curl",
            title="curl",
            note="In a shell:",
            language=Language.SHELL,
            code=list(curl_lines(base_url, model.id, keyed=keyed))[-1],
        ),
    )


def claude_code_lines(base_url: str, model: ServedModel, *, keyed: bool = False) -> Iterator[str]:
    """Yield shell lines that point Claude Code at this service."""
    token = KEY_VARIABLE if keyed else NO_KEY
    yield "# Claude Code: `semantic claude` in another terminal, or paste"
    yield from shell_lines(environment(base_url, model, token=token))
    tools = f' --tools "{FEW_TOOLS}"' if model.is_small else ""
    yield f"claude --permission-mode default{tools}"


def curl_lines(base_url: str, model: str, *, keyed: bool = False) -> Iterator[str]:
    """Yield one ``curl`` request to paste."""
    yield "# or"
    message = {"role": "user", "content": _QUESTION}
    body = json.dumps({"model": model, "max_tokens": _ANSWER_TOKENS, "messages": [message]})
    key = f' -H "x-api-key: {KEY_VARIABLE}"' if keyed else ""
    json_type = "-H 'content-type: application/json'"
    yield f"curl -s {base_url}/v1/messages{key} {json_type} -d {shlex.quote(body)}"


def _codex(base_url: str, model: ServedModel, *, keyed: bool) -> str:
    # A JSON string is a basic string of TOML too.
    lines = [f"model = {json.dumps(model.id)}", 'model_provider = "semantic"']
    if model.context_length is not None:
        lines.append(f"model_context_window = {model.context_length}")
    # The vendor runs it, so the service refuses requests that offer it.
    lines.append('web_search = "disabled"')
    lines += [
        "",
        "[model_providers.semantic]",
        'name = "semantic"',
        f"base_url = {json.dumps(base_url + '/v1')}",
        'wire_api = "responses"',
        "requires_openai_auth = false",
        "supports_websockets = false",
        f"stream_idle_timeout_ms = {CLIENT_TIMEOUT_MS}",
    ]
    if keyed:
        lines.append(f"env_key = {json.dumps(KEY_NAME)}")
    return "\n".join(lines)


def _sdk(client: str, base_url: str, call: str, text: str, model: str, *, keyed: bool) -> str:
    """Return a request in Python.

    Args:
        client: Class of the client; its package has the name in lower case.
        base_url: As this client wants it.
        call: The method of the client.
        text: Where a reply has its text.
        model: What is served.
        keyed: Whether the service needs a key.
    """
    key = f'os.environ["{KEY_NAME}"]' if keyed else json.dumps(NO_KEY)
    return "\n".join(
        [
            *(["import os", ""] if keyed else []),
            f"from {client.lower()} import {client}",
            "",
            f"client = {client}(base_url={json.dumps(base_url)}, api_key={key})",
            f"reply = client.{call}(",
            f"    model={json.dumps(model)},",
            f"    max_tokens={_ANSWER_TOKENS},",
            f'    messages=[{{"role": "user", "content": {json.dumps(_QUESTION)}}}],',
            ")",
            f"print(reply.{text})",
        ]
    )
