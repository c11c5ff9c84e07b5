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

from ops.clients.agents import AGENTS, paste_lines, start_of
from ops.clients.claude_code import (
    FEW_TOOLS,
    KEY_VARIABLE,
    NO_KEY,
    ServedModel,
    environment,
    shell_lines,
)
from ops.clients.codex import KEY_NAME, config_lines, configuration

#: Agents whose lines are those of ``semantic launch NAME --print``.
LISTED: Final = tuple(name for name in AGENTS if name not in {"claude", "codex"})
_QUESTION: Final = "Hello!"
_ANSWER_TOKENS: Final = 64


class Language(StrEnum):
    """The language of lines to paste."""

    SHELL = "shell"
    PYTHON = "python"
    TOML = "toml"


@dataclass(frozen=True, slots=True)
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
        keyed: Whether the service needs a key; the lines then read it from ``SEMANTIC_API_KEY``.
    """
    here, elsewhere = "On this machine: semantic launch", "Elsewhere, in a shell:"
    claude = "\n".join(claude_code_lines(base_url, model, keyed=keyed))
    codex = _codex(base_url, model, keyed=keyed)
    curl = curl_line(base_url, model.id, keyed=keyed)
    key = KEY_VARIABLE if keyed else None
    agents = ((name, start_of(name, base_url, [model], key=key)) for name in LISTED)
    api, path = f"{base_url}/v1", "choices[0].message.content"
    openai = _sdk("OpenAI", api, "chat.completions.create", path, model.id, keyed=keyed)
    path = "content[0].text"
    anthropic = _sdk("Anthropic", base_url, "messages.create", path, model.id, keyed=keyed)
    note = "In Python; other languages take the same base URL:"
    shell, python = Language.SHELL, Language.PYTHON
    return (
        ClientSetUp("claude-code", "Claude Code", f"{here} claude. {elsewhere}", shell, claude),
        ClientSetUp(
            "codex",
            "Codex",
            f"{here} codex. Elsewhere, in ~/.codex/config.toml:",
            Language.TOML,
            codex,
        ),
        *(
            ClientSetUp(
                name,
                AGENTS[name].title,
                f"{here} {name}. {elsewhere}",
                shell,
                "\n".join(paste_lines(start)),
            )
            for name, start in agents
        ),
        ClientSetUp("openai-sdk", "OpenAI SDK", note, python, openai),
        ClientSetUp("anthropic-sdk", "Anthropic SDK", note, python, anthropic),
        ClientSetUp("curl", "curl", "In a shell:", shell, curl),
    )


def claude_code_lines(base_url: str, model: ServedModel, *, keyed: bool = False) -> Iterator[str]:
    """Yield shell lines that point Claude Code at this service."""
    token = KEY_VARIABLE if keyed else NO_KEY
    yield from shell_lines(environment(base_url, model, token=token))
    tools = f' --tools "{FEW_TOOLS}"' if model.is_small else ""
    yield f"claude --permission-mode default{tools}"


def curl_line(base_url: str, model: str, *, keyed: bool = False) -> str:
    """Return one ``curl`` request to paste."""
    message = {"role": "user", "content": _QUESTION}
    body = json.dumps({"model": model, "max_tokens": _ANSWER_TOKENS, "messages": [message]})
    key = f' -H "x-api-key: {KEY_VARIABLE}"' if keyed else ""
    json_type = "-H 'content-type: application/json'"
    return f"curl -s {base_url}/v1/messages{key} {json_type} -d {shlex.quote(body)}"


def _codex(base_url: str, model: ServedModel, *, keyed: bool) -> str:
    configured = configuration(base_url, model.id, keyed=keyed)
    if model.context_length is not None:
        configured["model_context_window"] = model.context_length
    return "\n".join(config_lines(configured))


def _sdk(client: str, base_url: str, call: str, text: str, model: str, *, keyed: bool) -> str:
    """Return a request in Python.

    Args:
        client: Class of the client; its package has the name in lower case.
        base_url: As this client wants it.
        call: The method of the client.
        text: Where a reply has its text.
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
