"""Lines to paste: they run, and ``docs/clients.md`` shows the same.

``python -m tests.unit.ops.clients.test_set_up`` writes them into the page.
"""

from __future__ import annotations

import ast
import json
import shlex
import tomllib
from pathlib import Path

import pytest

from ops.clients.claude_code import ServedModel
from ops.clients.set_up import LISTED, Language, client_set_ups

DOCS = Path(__file__).parents[4] / "docs" / "clients.md"
BEGIN, END = "<!-- set-up -->\n", "<!-- /set-up -->\n"
URL = "http://127.0.0.1:8000"
DEMO = ServedModel("semantic-demo", 131_072)
HOSTILE = ['org/model"; rm -rf ~ #', "it's $HOME`id`", "line\nbreak", "\u202egnp.exe"]


def documented() -> str:
    """Return the part of the page."""
    parts = [
        "## Lines to paste\n\nThe page (`/ui`, Set up) and `GET /admin/clients` show ",
        "the same with your address and model. Where the\n[service has keys](security.md#keys), ",
        "they show lines that take the key from `SEMANTIC_API_KEY`: it takes\nthe place of ",
        '`local`, Codex\'s provider gets `env_key = "SEMANTIC_API_KEY"`, and curl\n',
        '`-H "x-api-key: $SEMANTIC_API_KEY"`.\n\n',
    ]
    parts += [
        f"{one.title}. {one.note}\n\n```{one.language}\n{one.code}\n```\n\n"
        for one in client_set_ups(URL, DEMO)
        if one.id not in LISTED
    ]
    return "".join(parts)


def test_the_docs_show_the_same_lines() -> None:
    text = DOCS.read_text("utf-8")
    shown = text[text.index(BEGIN) + len(BEGIN) : text.index(END)]
    assert shown == documented(), "write it: python -m tests.unit.ops.clients.test_set_up"


@pytest.mark.parametrize("keyed", [False, True])
@pytest.mark.parametrize("name", ["semantic-demo", *HOSTILE])
def test_lines_are_valid_for_any_name_of_a_model(name: str, keyed: bool) -> None:  # noqa: FBT001 - a parameter of the test
    for one in client_set_ups(URL, ServedModel(name, 4096), keyed=keyed):
        if one.id in LISTED:
            continue  # test_agents runs them
        match one.language:
            case Language.PYTHON:
                values = [
                    node.value
                    for node in ast.walk(ast.parse(one.code))
                    if isinstance(node, ast.Constant)
                ]
                assert name in values
            case Language.TOML:
                config = tomllib.loads(one.code)
                assert config["model"] == name
                provider = config["model_providers"][config["model_provider"]]
                assert provider["base_url"] == URL + "/v1"
                assert provider.get("env_key") == ("SEMANTIC_API_KEY" if keyed else None)
            case Language.SHELL:
                words = shlex.split(one.code)
                bodies = [json.loads(word) for word in words if word.startswith("{")]
                models = [word.split("=", 1)[1] for word in words if "_MODEL=" in word]
                assert set(models) | {body["model"] for body in bodies} == {name}
        assert ("SEMANTIC_API_KEY" in one.code) is keyed


def main() -> None:
    """Write the lines into the page."""
    text = DOCS.read_text("utf-8")
    begin, end = text.index(BEGIN) + len(BEGIN), text.index(END)
    DOCS.write_text(text[:begin] + documented() + text[end:], "utf-8")


if __name__ == "__main__":
    main()
