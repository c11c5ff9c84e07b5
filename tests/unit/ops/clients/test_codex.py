"""What Codex is started with."""

from __future__ import annotations

import tomllib
from typing import Any

import pytest

from ops.clients.claude_code import ServedModel
from ops.clients.codex import INSTRUCTIONS, arguments, catalogue

_URL = "http://127.0.0.1:8123"
_FOLLOWED = ServedModel("m", 32_768, follow=("codex-*",))
_FIXED = ServedModel("m", 131_072)
_HOSTILE = ServedModel('a"; rm -rf ~ #\n', None)


def _overrides(words: list[str]) -> dict[str, Any]:
    """Return the values of the ``-c`` options as Codex parses them."""
    options, values = words[::2], words[1::2]
    assert set(options) == {"-c"}
    parts = (value.split("=", 1) for value in values)
    return {name: tomllib.loads(f"value = {text}")["value"] for name, text in parts}


@pytest.mark.parametrize("model", [_FOLLOWED, _FIXED, _HOSTILE])
@pytest.mark.parametrize("keyed", [False, True])
def test_overrides_are_toml_and_name_a_model_of_the_catalogue(
    model: ServedModel,
    keyed: bool,  # noqa: FBT001 - a parameter of the test
) -> None:
    words = arguments([], _URL, model, catalogue_path='/a b/"c".json', keyed=keyed)
    chosen = _overrides(words)
    assert chosen["model"] in [one["slug"] for one in catalogue([model])["models"]]
    assert chosen["model_catalog_json"] == '/a b/"c".json'
    provider = chosen[f"model_providers.{chosen['model_provider']}"]
    assert provider["base_url"] == f"{_URL}/v1"
    assert provider.get("env_key") == ("SEMANTIC_API_KEY" if keyed else None)


def test_the_users_words_follow_ours() -> None:
    given = ["exec", "-c", "features.goals=true", "What is it?"]
    words = arguments(given, _URL, _FIXED, catalogue_path="/c.json", keyed=False)
    assert words[-len(given) :] == given


def test_the_catalogue_has_every_model_and_the_name_that_follows_the_first() -> None:
    other = ServedModel("other", None, follow=("codex-*",))
    entries = {one["slug"]: one for one in catalogue([_FOLLOWED, other])["models"]}
    assert list(entries) == ["codex-local", "m", "other"]
    assert [one["context_window"] for one in entries.values()] == [32_768, 32_768, None]
    assert {one["base_instructions"] for one in entries.values()} == {INSTRUCTIONS}


def test_a_tools_output_leaves_room_in_a_short_context() -> None:
    limits = [
        catalogue([model])["models"][0]["truncation_policy"]["limit"]
        for model in (_FOLLOWED, _FIXED, _HOSTILE)
    ]
    assert limits == [4096, 10_000, 10_000]
