"""The agents that ``semantic launch`` starts, as data, and what points each at this service.

Each gets variables and a file of its own in the data directory; no settings of the user change.
Claude Code and Codex need more than data and have modules of their own.
"""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from ops.clients import claude_code, codex
from ops.clients.claude_code import CLIENT_TIMEOUT_MS, KEY_VARIABLE, NO_KEY, ServedModel

#: Carries the key to agents whose files name a variable: ``OPENAI_API_KEY`` would reach the
#: programs that an agent runs.
_KEY_NAME: Final = "LOCAL_MODEL_KEY"
_KEY: Final = {_KEY_NAME: "{key}"}
_TIMEOUT_S: Final = CLIENT_TIMEOUT_MS // 1000
#: Directory of the files where lines are pasted on another machine; its shell inserts the home.
_PASTED: Final = "$HOME/.semantic"
_PLACE: Final = re.compile(r"\{(url|model|context|output|key|file|directory)\}")


@dataclass(frozen=True, slots=True, kw_only=True)
class CodingAgent:
    """How to start one agent; texts have places such as ``{url}``, see ``_PLACE``.

    Attributes:
        program: Looked up on the PATH.
        install: The command that installs it.
        words: Arguments before those of the user.
        file: Name of its file; empty without one.
        body: The content of the file, as JSON.
        around: Text before and after the JSON.
        inline: A variable that takes the body where there is no file.
    """

    title: str
    program: str
    install: str
    variables: Mapping[str, str] = field(default_factory=dict)
    words: tuple[str, ...] = ()
    file: str = ""
    body: Mapping[str, Any] = field(default_factory=dict)
    around: tuple[str, str] = ("", "")
    inline: str = ""


#: Kilo reads the same, under another name.
_OPENCODE: Final = {
    "model": "semantic/{model}",
    "small_model": "semantic/{model}",
    "share": "disabled",
    "autoupdate": False,
    "provider": {
        "semantic": {
            "npm": "@ai-sdk/openai-compatible",
            "name": "semantic",
            "options": {
                "baseURL": "{url}/v1",
                "apiKey": "{env:" + _KEY_NAME + "}",
                "timeout": CLIENT_TIMEOUT_MS,
            },
            "models": {"{model}": {"limit": {"context": "{context}", "output": "{output}"}}},
        }
    },
}
#: A model that reads text and costs nothing, as pi and OpenClaw describe it.
_FREE_MODEL: Final = {
    "id": "{model}",
    "name": "{model}",
    "reasoning": False,
    "input": ["text"],
    "cost": {"input": 0, "output": 0, "cacheRead": 0, "cacheWrite": 0},
    "contextWindow": "{context}",
    "maxTokens": "{output}",
}
_LIMITS_OF_CRUSH: Final = {"context_window": "{context}", "default_max_tokens": "{output}"}

#: By the name that ``semantic launch`` takes.
AGENTS: Final[Mapping[str, CodingAgent]] = {
    "claude": CodingAgent(
        title="Claude Code",
        program="claude",
        install="npm install -g @anthropic-ai/claude-code",
    ),
    "codex": CodingAgent(title="Codex", program="codex", install="npm install -g @openai/codex"),
    "opencode": CodingAgent(
        title="opencode",
        program="opencode",
        install="npm install -g opencode-ai",
        variables=_KEY,
        inline="OPENCODE_CONFIG_CONTENT",
        body=_OPENCODE,
    ),
    "kilo": CodingAgent(
        title="Kilo",
        program="kilo",
        install="npm install -g @kilocode/cli",
        variables={**_KEY, "KILO_DISABLE_SESSION_INGEST": "1"},
        inline="KILO_CONFIG_CONTENT",
        body=_OPENCODE,
    ),
    "qwen": CodingAgent(
        title="Qwen Code",
        program="qwen",
        install="npm install -g @qwen-code/qwen-code",
        variables={**_KEY, "QWEN_CODE_SYSTEM_SETTINGS_PATH": "{file}"},
        file="qwen.json",
        body={
            "model": {"name": "{model}"},
            "security": {"auth": {"selectedType": "openai"}},
            "privacy": {"usageStatisticsEnabled": False},
            "modelProviders": {
                "openai": [
                    {
                        "id": "{model}",
                        "baseUrl": "{url}/v1",
                        "envKey": _KEY_NAME,
                        "generationConfig": {
                            "timeout": CLIENT_TIMEOUT_MS,
                            "contextWindowSize": "{context}",
                            "samplingParams": {"max_tokens": "{output}"},
                        },
                    }
                ]
            },
        },
    ),
    "pi": CodingAgent(
        title="pi",
        program="pi",
        install="npm install -g @earendil-works/pi-coding-agent",
        variables={**_KEY, "PI_TELEMETRY": "0", "PI_SKIP_VERSION_CHECK": "1"},
        words=("-e", "{file}", "--provider", "semantic", "--model", "{model}"),
        file="pi.js",
        around=('export default (pi) => pi.registerProvider("semantic", ', ");"),
        body={
            "api": "openai-completions",
            "baseUrl": "{url}/v1",
            "apiKey": f"${_KEY_NAME}",
            "models": [_FREE_MODEL],
        },
    ),
    "cline": CodingAgent(
        title="Cline",
        program="cline",
        install="npm install -g cline",
        variables={"CLINE_PROVIDER_SETTINGS_PATH": "{file}"},
        words=("-P", "openai-compatible", "-m", "{model}"),
        file="cline.json",
        body={
            "version": 1,
            "lastUsedProvider": "openai-compatible",
            "modes": {},
            "providers": {
                "openai-compatible": {
                    "settings": {
                        "provider": "openai-compatible",
                        "apiKey": "{key}",
                        "model": "{model}",
                        "baseUrl": "{url}/v1",
                    },
                    "updatedAt": "2026-01-01T00:00:00.000Z",
                    "tokenSource": "manual",
                }
            },
        },
    ),
    "openclaw": CodingAgent(
        title="OpenClaw",
        program="openclaw",
        install="npm install -g openclaw",
        variables={**_KEY, "OPENCLAW_CONFIG_PATH": "{file}"},
        file="openclaw.json",
        body={
            "agents": {"defaults": {"model": {"primary": "semantic/{model}"}}},
            "models": {
                "mode": "merge",
                "providers": {
                    "semantic": {
                        "api": "openai-completions",
                        "baseUrl": "{url}/v1",
                        "apiKey": "${" + _KEY_NAME + "}",
                        "models": [_FREE_MODEL],
                    }
                },
            },
        },
    ),
    "goose": CodingAgent(
        title="goose",
        program="goose",
        install="brew install block-goose-cli",
        variables={
            "GOOSE_PROVIDER": "openai",
            "GOOSE_MODEL": "{model}",
            "GOOSE_CONTEXT_LIMIT": "{context}",
            "OPENAI_HOST": "{url}",
            "OPENAI_BASE_PATH": "v1/chat/completions",
            "OPENAI_API_KEY": "{key}",
            "OPENAI_TIMEOUT": str(_TIMEOUT_S),
        },
    ),
    "aider": CodingAgent(
        title="aider",
        program="aider",
        install="pipx install aider-chat",
        variables={
            "AIDER_MODEL": "openai/{model}",
            "AIDER_MODEL_METADATA_FILE": "{file}",
            "AIDER_TIMEOUT": str(_TIMEOUT_S),
            "AIDER_ANALYTICS": "false",
            "AIDER_CHECK_UPDATE": "false",
            "LITELLM_LOCAL_MODEL_COST_MAP": "True",
            "OPENAI_API_BASE": "{url}/v1",
            "OPENAI_API_KEY": "{key}",
        },
        file="aider.json",
        body={
            "openai/{model}": {
                "litellm_provider": "openai",
                "mode": "chat",
                "max_input_tokens": "{context}",
                "max_output_tokens": "{output}",
                "input_cost_per_token": 0,
                "output_cost_per_token": 0,
            }
        },
    ),
    "crush": CodingAgent(
        title="Crush",
        program="crush",
        install="npm install -g @charmland/crush",
        variables={**_KEY, "CRUSH_GLOBAL_CONFIG": "{directory}"},
        file="crush/crush.json",
        body={
            "options": {"disable_metrics": True, "disable_provider_auto_update": True},
            "models": {
                "large": {"provider": "semantic", "model": "{model}"},
                "small": {"provider": "semantic", "model": "{model}"},
            },
            "providers": {
                "semantic": {
                    "name": "semantic",
                    "type": "openai-compat",
                    "base_url": "{url}/v1",
                    "api_key": f"${_KEY_NAME}",
                    "models": [{"id": "{model}", "name": "{model}", **_LIMITS_OF_CRUSH}],
                }
            },
        },
    ),
    "continue": CodingAgent(
        title="Continue",
        program="cn",
        install="npm install -g @continuedev/cli",
        variables={**_KEY, "CONTINUE_TELEMETRY_ENABLED": "0"},
        words=("--config", "{file}"),
        file="continue.yaml",
        body={
            "name": "semantic",
            "version": "1.0.0",
            "schema": "v1",
            "models": [
                {
                    "name": "{model}",
                    "provider": "openai",
                    "model": "{model}",
                    "apiBase": "{url}/v1",
                    "apiKey": "${{ secrets." + _KEY_NAME + " }}",
                    "roles": ["chat", "edit", "apply"],
                    "defaultCompletionOptions": {
                        "contextLength": "{context}",
                        "maxTokens": "{output}",
                    },
                }
            ],
        },
    ),
}


@dataclass(frozen=True, slots=True)
class Start:
    """One start of an agent.

    Attributes:
        variables: Of its environment, a key among them.
        file: Path of the file that it needs; empty without one.
    """

    program: str
    variables: Mapping[str, str]
    words: Sequence[str]
    file: str = ""
    text: str = ""


def start_of(
    name: str,
    base_url: str,
    models: Sequence[ServedModel],
    *,
    key: str | None,
    directory: str = _PASTED,
    given: Sequence[str] = (),
) -> Start:
    """Return how to start an agent on this service.

    Args:
        name: In ``AGENTS``, without ``claude``, whose environment is no list of variables alone.
        models: What is registered, the loaded one first.
        key: Of the service, or ``KEY_VARIABLE`` for lines to paste.
    """
    agent = AGENTS[name]
    if name == "codex":
        file = f"{directory}/codex-models.json"
        words = codex.arguments(
            given, base_url, models[0], catalogue_path=file, keyed=key is not None
        )
        variables = {} if key is None else {codex.KEY_NAME: key}
        return Start(agent.program, variables, words, file, json.dumps(codex.catalogue(models)))
    file = f"{directory}/{agent.file}" if agent.file else ""
    places = {
        "url": base_url,
        "model": models[0].id,
        "context": models[0].context_length,
        "output": claude_code.output_tokens(models[0]),
        "key": NO_KEY if key is None else key,
        "file": file,
        "directory": file.rpartition("/")[0],
    }
    body = json.dumps(_filled(agent.body, places))
    variables = {one: str(value) for one, value in _filled(agent.variables, places).items()}
    if agent.inline:
        variables[agent.inline] = body
    words = [*_filled(list(agent.words), places), *given]
    return Start(agent.program, variables, words, file, body.join(agent.around) if file else "")


def _filled(template: Any, places: Mapping[str, Any]) -> Any:  # noqa: ANN401 - JSON
    """Return a template with its places filled; what is unknown, or empty then, is left out."""
    match template:
        case dict():
            filled = {
                _filled(name, places): _filled(value, places) for name, value in template.items()
            }
            return {name: value for name, value in filled.items() if value not in (None, {})}
        case list():
            return [_filled(one, places) for one in template]
        case str() if place := _PLACE.fullmatch(template):
            return places[place[1]]
        case str():
            return _PLACE.sub(lambda place: str(places[place[1]]), template)
        case _:
            return template


def paste_lines(start: Start) -> Iterator[str]:
    """Yield lines of a POSIX shell that start an agent as ``semantic launch`` does."""
    if start.file:
        yield f"mkdir -p {_quoted(start.file.rpartition('/')[0], start)}"
        yield f"cat > {_quoted(start.file, start)} <<'END'"
        yield from (start.text, "END")
    for name, value in start.variables.items():
        if f"${name}" != value:
            yield f"export {name}={_quoted(value, start)}"
    yield " ".join(_quoted(word, start) for word in [start.program, *start.words])


def _quoted(word: str, start: Start) -> str:
    """Quote a word; the shell inserts the home of a pasted file and the key."""
    places = {start.file, start.file.rpartition("/")[0]}
    if word == KEY_VARIABLE or (word.startswith(_PASTED) and word in places):
        return f'"{word}"'
    return shlex.quote(word)
