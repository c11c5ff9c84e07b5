"""The example files of settings in ``ops/deploy``: ``python -m docs.site.settings_examples``.

Each has every setting as a comment, with its meaning, limits and default, so that an operator
copies the file and removes the ``#`` before what is to change.
"""

from __future__ import annotations

import json
import shlex
import sys
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final

from docs.site.settings_reference import COMPUTED, groups, leaves, settings_schema
from docs.site.tables import Schema, limits

DEPLOY: Final = Path(__file__).parents[2] / "ops" / "deploy"
COLUMNS: Final = 98

_TOML_HEAD: Final = """
Every setting of semantic, as a comment with its default. Copy this file to
~/.config/semantic/semantic.toml, or name it with --config, and remove the # before what you change.
A setting without a default shows an example, and its comment marks it as one.
Made from the settings model by `make packages`.
"""
_ENV_HEAD: Final = """
Every setting of semantic as a variable of the environment, as a comment with its default.
semantic reads no .env file of itself (ADR 0036). Copy this file, remove the # before what you
change, and load it: set -a; . ./.env; set +a; semantic serve
Docker Compose reads the .env file beside ops/deploy/container/compose.yaml; that one also needs
POSTGRES_PASSWORD, and SEMANTIC_API_KEY as the key of the service: compose.yaml sets its own
SEMANTIC_LOG__URL, SEMANTIC_REDIS__URL and SEMANTIC_SERVER__API_KEYS.
Keep a file with keys readable by yourself only: chmod 600 .env
A setting without a default shows an example, and its comment marks it as one.
Made from the settings model by `make packages`.
"""

#: A valid value of each setting that has no default, or that depends on the machine.
EXAMPLES: Final[Mapping[str, Any]] = MappingProxyType(
    {
        "config": "~/llm/semantic.toml",
        "data_dir": "/srv/semantic",
        "api_key": "a-key-of-16-or-more-characters",
        "server.requests_per_minute": 120,
        "server.key_jobs_at_once": 64,
        "server.key_scopes": {},
        "server.agent_requests_per_minute": 60,
        "server.agent_jobs_at_once": 4,
        "redis.url": "redis://127.0.0.1:6379/0",
        "log.url": "sqlite:////srv/semantic/events.sqlite3",
        "model.name": "assistant",
        "model.context_length": 32768,
        "models.coder.source": "mlx-community/Qwen3-Coder-30B-A3B-Instruct-4bit",
        "models.coder.context": 32768,
        "models.coder.revision": "main",
        "models.coder.adapter": "/srv/adapters/coder",
        "models.coder.draft": "mlx-community/Qwen3-0.6B-4bit",
        "models.coder.kv_bits": 8,
        "models.coder.kind": "chat",
        "models.coder.pooling": "last",
        "models.coder.sampling.temperature": 0.7,
        "models.coder.sampling.top_p": 0.8,
        "models.coder.sampling.top_k": 20,
        "models.coder.sampling.min_p": 0.05,
        "models.coder.sampling.presence_penalty": 0.5,
        "models.coder.sampling.frequency_penalty": 0.2,
        "models.coder.sampling.repetition_penalty": 1.05,
        "models.coder.sampling.repetition_context_size": 256,
        "models.coder.sampling.xtc_probability": 0.5,
        "models.coder.sampling.xtc_threshold": 0.1,
        "engine.kv_budget_mb": 8192,
        "cache.dir": "/srv/semantic/cache",
        "jobs.worker_standby": True,
        "webhooks.secret": "whsec_ZXhhbXBsZQ==",
        "retention.text_days": 90.0,
        "retention.text_gb": 10.0,
        "retention.archive_days": 365.0,
        "tracing.endpoint": "http://localhost:4318",
    }
)
#: Settings of which the example is the default.
_EMPTY: Final = frozenset({"server.key_scopes"})
#: The table that shows how a model is registered.
_MODEL: Final = "models.coder."


def toml() -> str:
    """Return the configuration file."""
    lines = [*_comment(_TOML_HEAD), ""]
    for group, about, settings in _groups():
        if group == _MODEL:
            lines += ["", *_comment(about), f"# [{group.rstrip('.')}]"]
        elif group:
            lines += ["", *_comment(about), f"[{group.rstrip('.')}]"]
        for name, schema in settings:
            if name != "config":  # a file cannot name another one
                lines += _meaning(name, schema)
                lines.append(f"# {name.removeprefix(group)} = {_toml(_value(name, schema))}")
    return "\n".join(lines) + "\n"


def env() -> str:
    """Return the file of variables."""
    lines = [*_comment(_ENV_HEAD)]
    for group, about, settings in _groups():
        lines += ["", *_comment(f"{group.rstrip('.')}: {about}" if group else about)]
        for name, schema in settings:
            value = _value(name, schema)
            text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
            lines += _meaning(name, schema)
            lines.append(f"# SEMANTIC_{name.upper().replace('.', '__')}={shlex.quote(text)}")
    return "\n".join(lines) + "\n"


#: The files, by what makes them.
FILES: Final = MappingProxyType(
    {DEPLOY / "semantic.example.toml": toml, DEPLOY / ".env.example": env}
)


def _groups() -> Iterator[tuple[str, str, Sequence[tuple[str, Schema]]]]:
    """Yield the prefix, the description and the settings of each group."""
    definitions: Mapping[str, Schema] = settings_schema()["$defs"]
    single, grouped = groups()
    yield "", "Top level.", list(single.items())
    for name, group in grouped.items():
        about = group["description"].splitlines()[0].replace("``", "")
        yield f"{name}.", about, list(leaves(f"{name}.", group["properties"], definitions))
        inside = group.get("additionalProperties")
        if isinstance(inside, dict):
            table = definitions[inside["$ref"].rpartition("/")[2]]
            settings = list(leaves(_MODEL, table["properties"], definitions))
            yield _MODEL, "A registered model; [models.NAME] for each.", settings


def _meaning(name: str, schema: Schema) -> list[str]:
    """Return the comment of a setting: its description, limits, and any lack of a default."""
    bounds = limits(schema).replace("`", "")
    text = schema.get("description", "") or name.rpartition(".")[2]
    if bounds:
        text += f" ({bounds})"
    if schema.get("default") is None and name not in _EMPTY:
        text += f"; an example, by default {COMPUTED.get(name, 'not set').replace('`', '')}"
    return ["", *_comment(text)]


def _value(name: str, schema: Schema) -> Any:  # noqa: ANN401 - whatever the setting takes
    default = schema.get("default")
    if default is not None:
        return default
    if name not in EXAMPLES:
        message = f"{name} has no default: give it an example in docs/site/settings_examples.py"
        raise LookupError(message)
    return EXAMPLES[name]


def _toml(value: object) -> str:
    """Return a value as TOML, which writes all but tables as JSON does."""
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{key} = {_toml(one)}" for key, one in value.items()) + "}"
    return json.dumps(value, ensure_ascii=False)


def _comment(text: str) -> list[str]:
    return [
        f"# {line}"
        for paragraph in text.strip().splitlines()
        for line in textwrap.wrap(
            paragraph, COLUMNS - 2, break_long_words=False, break_on_hyphens=False
        )
    ]


def main() -> int:
    """Write the files."""
    for path, render in FILES.items():
        path.write_text(render(), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
