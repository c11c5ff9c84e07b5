"""Environment and arguments that make Claude Code work with a local model.

Measured with version 2.1.329: with a model name that is not one of Claude's it accepts the
context length from the environment, else it assumes a million tokens. Its default time-outs end an
answer after five minutes of prefill, and its attribution line changes every prompt.

In this package a ``base_url`` is that of the service, without ``/v1``, and arguments ``given`` are
those of the user.
"""

from __future__ import annotations

import json
import os
import shlex
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final

#: The shortest context in which Claude Code's own prompt leaves room to work.
CONTEXT_TOKENS_MIN: Final = 65_536
#: Longest answer that Claude Code is configured to request, in tokens.
OUTPUT_TOKENS_MAX: Final = 16_384
#: Claude Code raises a smaller window of automatic compaction to this, in tokens.
_COMPACT_WINDOW_MIN: Final = 100_000
#: Half an hour, in milliseconds: a cold prefill of a long prompt may take minutes without a token.
CLIENT_TIMEOUT_MS: Final = 1_800_000
#: Tools that are enough to read, change and run things, for models with a short context.
FEW_TOOLS: Final = "Bash,Read,Edit,Write"
#: A service without keys accepts any token; without a token Claude Code demands a login.
NO_KEY: Final = "local"
#: Claude Code would send the vendor's key beside the token; it must not reach this service.
UNSET: Final = ("ANTHROPIC_API_KEY",)
#: The name that Claude Code sends where it follows the loaded model. It must not be a name that
#: Claude Code knows, or the stated limits would not count.
FOLLOWING_NAME: Final = "claude-local"
#: Stands for the key in lines to paste: the shell inserts it and no screen shows it.
KEY_VARIABLE: Final = "$SEMANTIC_API_KEY"
_TOKEN: Final = "ANTHROPIC_AUTH_TOKEN"  # noqa: S105 - the name of the variable, not its value
_HEADERS: Final = "ANTHROPIC_CUSTOM_HEADERS"

_PERMISSION_OPTIONS = frozenset(
    {"--permission-mode", "--dangerously-skip-permissions", "--allow-dangerously-skip-permissions"}
)
_TOOL_OPTIONS = frozenset({"--tools", "--bare"})
_LINE_CHARS = 100
_SETTINGS_OPTION = "--settings"
_MODEL_NAMES = (
    "ANTHROPIC_MODEL",
    "ANTHROPIC_DEFAULT_OPUS_MODEL",
    "ANTHROPIC_DEFAULT_SONNET_MODEL",
    "ANTHROPIC_DEFAULT_HAIKU_MODEL",
    "CLAUDE_CODE_SUBAGENT_MODEL",
)
#: Subcommands of ``claude`` that start no session.
_COMMANDS = frozenset({"mcp", "config", "doctor", "update", "install", "plugin", "setup-token"})


@dataclass(frozen=True, slots=True)
class ServedModel:
    """The loaded model as clients see it.

    Attributes:
        context_length: In tokens, if known.
        follow: Patterns of names that follow the loaded model.
    """

    id: str
    context_length: int | None
    follow: tuple[str, ...] = ()

    @classmethod
    def all_of(cls, listing: Mapping[str, Any]) -> tuple[ServedModel, ...]:
        """Return the chat models of a reply of ``/admin/models``, the loaded one first."""
        follow = tuple(map(str, listing["follow"]))
        return tuple(
            cls(str(one["name"]), one["context_length"], follow=follow)
            for one in listing["data"]
            if one.get("kind") != "embedding"
        )

    def following(self, name: str) -> str:
        """Return a name that is answered after a swap too: ``name`` where a pattern allows it."""
        follows = any(fnmatchcase(name, pattern) for pattern in self.follow)
        return name if follows else self.id

    @property
    def is_small(self) -> bool:
        """Whether Claude Code's full set of tools would leave too little room."""
        return self.context_length is not None and self.context_length < CONTEXT_TOKENS_MIN


def environment(base_url: str, model: ServedModel, *, token: str = NO_KEY) -> dict[str, str]:
    """Return the variables that point Claude Code at this service, in the order to show them.

    Args:
        token: Sent as a bearer token; a real key goes by ``key_variable`` where it can.
    """
    variables = {"ANTHROPIC_BASE_URL": base_url, _TOKEN: token}
    variables |= dict.fromkeys(_MODEL_NAMES, model.following(FOLLOWING_NAME))
    if model.context_length is not None:
        variables["CLAUDE_CODE_MAX_CONTEXT_TOKENS"] = str(model.context_length)
        variables["CLAUDE_CODE_MAX_OUTPUT_TOKENS"] = str(output_tokens(model))
        if model.context_length >= _COMPACT_WINDOW_MIN:
            variables["CLAUDE_CODE_AUTO_COMPACT_WINDOW"] = str(model.context_length)
    return variables | {
        "CLAUDE_STREAM_IDLE_TIMEOUT_MS": str(CLIENT_TIMEOUT_MS),
        "API_TIMEOUT_MS": str(CLIENT_TIMEOUT_MS),
        "CLAUDE_CODE_ATTRIBUTION_HEADER": "0",
        "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
        "CLAUDE_CODE_TOTAL_TOKENS_REMINDER": "off",
    }


def output_tokens(model: ServedModel) -> int | None:
    """Return the longest answer that an agent is configured to request, if the context is known."""
    if model.context_length is None:
        return None
    return max(1, min(OUTPUT_TOKENS_MAX, model.context_length // 4))


def key_variable(key: str, inherited: Mapping[str, str]) -> dict[str, str]:
    """Return the variable that carries a key as a header of its own.

    A header named here overrides every token, key and helper of the user's settings. Those
    would override a token of the environment, and every user of the machine could read a key in
    ``--settings``.

    Args:
        inherited: The environment so far; its own headers stay, one to a line.
    """
    lines = [inherited[_HEADERS]] if inherited.get(_HEADERS) else []
    return {_HEADERS: "\n".join([*lines, f"x-api-key: {key}"])}


def arguments(
    given: Sequence[str],
    variables: Mapping[str, str],
    model: ServedModel,
    further: Mapping[str, Any] = MappingProxyType({}),
) -> list[str]:
    """Return the arguments for ``claude``: those given, and defaults for the options left out.

    The variables are passed as ``--settings`` too, for this session only: the ``env`` of a settings
    file would override the environment, and no file of the user changes. ``--settings`` also
    disables keys and helpers that the user keeps for other services.

    Args:
        variables: Without a secret: every user of the machine can read the arguments of a process.
        further: Settings of Claude Code beside its environment.
    """
    if given and given[0] in _COMMANDS:
        return list(given)
    names = {word.split("=", 1)[0] for word in given}
    added: list[str] = []
    if not names & _PERMISSION_OPTIONS:
        # The automatic mode asks the vendor's servers whether a command is safe.
        added += ["--permission-mode", "default"]
    if model.is_small and not names & _TOOL_OPTIONS:
        # With an equals sign: the option takes all words that follow, a prompt among them.
        added.append(f"--tools={FEW_TOOLS}")
    if _SETTINGS_OPTION not in names:
        unset = dict.fromkeys(UNSET, "")
        settings = {"apiKeyHelper": "", "env": {**variables, **unset}, **further}
        added.append(f"{_SETTINGS_OPTION}={json.dumps(settings)}")
    return [*added, *given]


def starts_session(given: Sequence[str]) -> bool:
    """Whether the arguments start a session."""
    is_other = {"-h", "--help", "-v", "--version"} & set(given)
    return not is_other and not (given and given[0] in _COMMANDS)


def has_screen(given: Sequence[str]) -> bool:
    """Whether Claude Code draws on the whole terminal; it does not with ``-p``."""
    return not {"-p", "--print"} & set(given)


def has_status_line(home: Path, directory: Path) -> bool:
    """Whether a settings file of the user or of a project has a status line."""
    own = Path(os.environ.get("CLAUDE_CONFIG_DIR") or home / ".claude")
    names = ("settings.json", "settings.local.json")
    for path in (own / names[0], *(directory / ".claude" / name for name in names)):
        with suppress(OSError, UnicodeDecodeError):
            if '"statusLine"' in path.read_text():
                return True
    return False


def shell_lines(variables: Mapping[str, str]) -> Iterator[str]:
    """Yield lines for a POSIX shell: ``unset``, then the exports, several to a line."""
    yield f"unset {' '.join(UNSET)}"
    line = ""
    for name, value in variables.items():
        quoted = f'"{value}"' if value == KEY_VARIABLE else shlex.quote(value)
        word = f" {name}={quoted}"
        if line and len(line) + len(word) > _LINE_CHARS:
            yield f"export{line}"
            line = ""
        line += word
    yield f"export{line}"
