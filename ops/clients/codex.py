"""Arguments and the model catalogue that make Codex work with a local model.

Measured with version 0.169.0: for a model that no catalogue has, Codex guesses the context length,
sends 17,000 characters of instructions that suit the vendor's models, and offers no patch tool.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from ops.clients.claude_code import CLIENT_TIMEOUT_MS, KEY_VARIABLE, ServedModel

#: Name of the variable that holds the key of the service.
KEY_NAME: Final = KEY_VARIABLE.removeprefix("$")
#: The name that Codex sends where it follows the loaded model.
FOLLOWING_NAME: Final = "codex-local"
PROVIDER: Final = "semantic"
#: The largest part of a context that the output of one tool may take, and its limit in tokens.
_OUTPUT_PART: Final = 8
_OUTPUT_TOKENS_MAX: Final = 10_000
_EFFORTS: Final = ("low", "medium", "high")
INSTRUCTIONS: Final = """\
You are a coding agent. You work in the user's directory, through the tools that you are given.
- Look before you act: read files with exec_command (prefer rg, sed -n and ls).
- Change files with apply_patch, in small steps that fit the code around them.
- Change only what the task needs, and keep changes of the user that are not yours.
- Run the tests or the program after a change, if there is a way to.
- Go on until the task is done. Then state in a few sentences what you changed and what is open.
- If you did not run it, do not claim that it works."""


def catalogue(models: Sequence[ServedModel]) -> dict[str, Any]:
    """Return the model catalogue of Codex, which replaces the vendor's.

    Args:
        models: The registered models, the loaded one first; the first also stands under the name
            that follows it.
    """
    names = {models[0].following(FOLLOWING_NAME): models[0]} | {one.id: one for one in models}
    entries = enumerate(names.items())
    return {"models": [_entry(name, model, place) for place, (name, model) in entries]}


def _entry(name: str, model: ServedModel, place: int) -> dict[str, Any]:
    output = _OUTPUT_TOKENS_MAX
    if model.context_length is not None:
        output = min(output, model.context_length // _OUTPUT_PART)
    return {
        "slug": name,
        "display_name": name,
        "description": f"{model.id} on this machine",
        "context_window": model.context_length,
        "truncation_policy": {"mode": "tokens", "limit": output},
        "base_instructions": INSTRUCTIONS,
        "shell_type": "unified_exec",
        "apply_patch_tool_type": "freeform",
        "input_modalities": ["text"],
        "supports_parallel_tool_calls": True,
        "supported_reasoning_levels": [
            {"effort": effort, "description": f"reason with {effort} effort"} for effort in _EFFORTS
        ],
        "supports_reasoning_summaries": False,
        "supports_reasoning_summary_parameter": False,
        "default_reasoning_summary": "none",
        "support_verbosity": True,
        "include_skills_usage_instructions": False,
        "include_plugin_usage_instructions": False,
        "include_apps_usage_instructions": False,
        "experimental_supported_tools": [],
        "visibility": "list",
        "supported_in_api": True,
        "priority": place,
    }


def configuration(base_url: str, model: str, *, keyed: bool) -> dict[str, Any]:
    """Return what every configuration of Codex for this service has.

    Args:
        keyed: Whether the service needs a key; Codex then reads it from ``SEMANTIC_API_KEY``.
    """
    provider: dict[str, Any] = {
        "name": PROVIDER,
        "base_url": f"{base_url}/v1",
        "wire_api": "responses",
        "requires_openai_auth": False,
        "supports_websockets": False,
        "stream_idle_timeout_ms": CLIENT_TIMEOUT_MS,
    }
    if keyed:
        provider["env_key"] = KEY_NAME
    return {
        "model": model,
        "model_provider": PROVIDER,
        # The vendor runs it, so the service refuses requests that offer it.
        "web_search": "disabled",
        f"model_providers.{PROVIDER}": provider,
    }


def arguments(
    given: Sequence[str], base_url: str, model: ServedModel, *, catalogue_path: str, keyed: bool
) -> list[str]:
    """Return the arguments for ``codex``: a configuration of this session, then those given.

    They override the user's ``config.toml``, which stays as it is with its servers, sessions and
    skills; a ``-c`` of the user's overrides them in turn.
    """
    chosen = configuration(base_url, model.following(FOLLOWING_NAME), keyed=keyed) | {
        "model_catalog_json": catalogue_path,
        # Together three quarters of the first prompt of a model that knows none of them.
        "agents.enabled": False,
        "features.view_image": False,
        "features.goals": False,
        "skills.bundled.enabled": False,
    }
    words = [word for name, value in chosen.items() for word in ("-c", f"{name}={_toml(value)}")]
    return [*words, *given]


def config_lines(configured: Mapping[str, Any]) -> Iterator[str]:
    """Yield the lines of a ``config.toml``; tables follow the other values."""
    for name, value in configured.items():
        if not isinstance(value, dict):
            yield f"{name} = {_toml(value)}"
    for name, value in configured.items():
        if isinstance(value, dict):
            yield from ("", f"[{name}]", *(f"{key} = {_toml(one)}" for key, one in value.items()))


def _toml(value: object) -> str:
    if isinstance(value, dict):
        return "{" + ", ".join(f"{name} = {_toml(one)}" for name, one in value.items()) + "}"
    # A JSON string is a basic string of TOML too.
    return json.dumps(value)
