"""What Claude Code is started with."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from ops.clients.claude_code import (
    FEW_TOOLS,
    ServedModel,
    arguments,
    environment,
    has_screen,
    has_status_line,
    key_variable,
    starts_session,
)

_URL = "http://127.0.0.1:8123"
_LARGE, _SMALL = ServedModel("m", 131_072), ServedModel("m", 32_768)
_VARIABLES = environment(_URL, _LARGE)


def test_every_alias_of_the_client_is_the_one_model() -> None:
    names = {value for name, value in _VARIABLES.items() if name.endswith("_MODEL")}
    assert names == {"m"}
    assert sum(name.endswith("_MODEL") for name in _VARIABLES) == 5


@pytest.mark.parametrize(
    ("follow", "name"),
    [
        (("claude-*", "gpt-*"), "claude-local"),
        (("*",), "claude-local"),
        (("gpt-*",), "m"),
        ((), "m"),
    ],
)
def test_name_follows_the_loaded_model_where_a_pattern_allows_it(
    follow: tuple[str, ...], name: str
) -> None:
    variables = environment(_URL, ServedModel("m", 131_072, follow=follow))
    assert {variables[one] for one in variables if one.endswith("_MODEL")} == {name}


def test_limits_are_those_of_the_model_and_are_not_made_up() -> None:
    assert environment(_URL, _SMALL)["CLAUDE_CODE_MAX_CONTEXT_TOKENS"] == "32768"
    assert environment(_URL, _SMALL)["CLAUDE_CODE_MAX_OUTPUT_TOKENS"] == "8192"
    unknown = environment(_URL, ServedModel("m", None))
    assert not any(name.startswith("CLAUDE_CODE_MAX") for name in unknown)


def test_the_caller_s_words_follow_ours_as_they_stand() -> None:
    given = ["-p", "--output-format", "json", "What is it?"]
    words = arguments(given, _VARIABLES, _LARGE)
    assert words[-4:] == given
    assert words[:2] == ["--permission-mode", "default"]


def test_a_settings_file_of_the_user_s_does_not_redirect_the_session() -> None:
    (word,) = [word for word in arguments([], _VARIABLES, _LARGE) if "--settings" in word]
    settings = json.loads(word.removeprefix("--settings="))
    assert settings["env"] == _VARIABLES | {"ANTHROPIC_API_KEY": ""}
    # Nor does a helper of the user's fetch somebody else's key for it.
    assert settings["apiKeyHelper"] == ""


def test_a_key_goes_in_a_header_of_its_own_beside_those_that_there_are() -> None:
    assert key_variable("k" * 16, {}) == {"ANTHROPIC_CUSTOM_HEADERS": f"x-api-key: {'k' * 16}"}
    before = {"ANTHROPIC_CUSTOM_HEADERS": "x-team: blue"}
    after = key_variable("k" * 16, before)["ANTHROPIC_CUSTOM_HEADERS"]
    assert after.splitlines() == ["x-team: blue", f"x-api-key: {'k' * 16}"]


@pytest.mark.parametrize(
    "given",
    [
        ["--permission-mode", "plan"],
        ["--permission-mode=plan"],
        ["--dangerously-skip-permissions"],
    ],
)
def test_a_permission_mode_of_the_caller_s_stands(given: list[str]) -> None:
    words = arguments(given, _VARIABLES, _LARGE)
    assert words.count("default") == 0


def test_a_short_context_gets_few_tools_unless_the_caller_names_some() -> None:
    assert f"--tools={FEW_TOOLS}" in arguments(["-p", "x"], _VARIABLES, _SMALL)
    assert not any(FEW_TOOLS in word for word in arguments(["-p", "x"], _VARIABLES, _LARGE))
    chosen = arguments(["--tools", "Read"], _VARIABLES, _SMALL)
    assert sum(word.startswith("--tools") for word in chosen) == 1


def test_other_settings_of_the_caller_s_stand() -> None:
    words = arguments(["--settings", "mine.json"], _VARIABLES, _LARGE)
    assert sum(word.startswith("--settings") for word in words) == 1


def test_further_settings_stand_beside_the_environment() -> None:
    (word,) = [
        word
        for word in arguments([], _VARIABLES, _LARGE, {"statusLine": {"type": "command"}})
        if "--settings" in word
    ]
    settings = json.loads(word.removeprefix("--settings="))
    assert settings["statusLine"] == {"type": "command"}
    assert settings["env"]["ANTHROPIC_BASE_URL"] == _URL


@pytest.mark.parametrize(
    ("given", "starts", "screen"),
    [
        ([], True, True),
        (["-p", "hi"], True, False),
        (["--print", "hi"], True, False),
        (["mcp", "list"], False, True),
        (["--version"], False, True),
    ],
)
def test_what_a_session_shows_follows_from_its_arguments(
    given: list[str], *, starts: bool, screen: bool
) -> None:
    assert (starts_session(given), has_screen(given)) == (starts, screen)


@pytest.mark.parametrize(
    "name", ["home/.claude/settings.json", "here/.claude/settings.local.json", None]
)
def test_a_status_line_of_the_user_or_the_project_is_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str | None
) -> None:
    monkeypatch.delenv("CLAUDE_CONFIG_DIR", raising=False)
    if name is not None:
        (tmp_path / name).parent.mkdir(parents=True)
        (tmp_path / name).write_text('{"statusLine": {"type": "command"}}')
    assert has_status_line(tmp_path / "home", tmp_path / "here") is (name is not None)


def test_a_command_that_starts_no_session_gets_nothing_added() -> None:
    assert arguments(["mcp", "list"], _VARIABLES, _SMALL) == ["mcp", "list"]


def test_reminders_are_off_and_the_window_of_compaction_is_that_of_the_model() -> None:
    assert _VARIABLES["CLAUDE_CODE_TOTAL_TOKENS_REMINDER"] == "off"
    assert _VARIABLES["CLAUDE_CODE_AUTO_COMPACT_WINDOW"] == "131072"
    # The client would raise a smaller one, and never compact in time.
    assert "CLAUDE_CODE_AUTO_COMPACT_WINDOW" not in environment(_URL, _SMALL)
