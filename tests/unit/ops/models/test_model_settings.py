"""The tables of registered models, and the settings beside them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from pydantic import ValidationError

from ops.cli.service.config import origins
from ops.models.registry import configured_models
from ops.settings.places import user_config_file
from ops.settings.settings import load_settings


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where no file and no variable of the real user is seen."""
    here = tmp_path / "work"
    here.mkdir()
    monkeypatch.chdir(here)
    monkeypatch.setenv("HOME", str(tmp_path))
    return tmp_path


def _write(text: str) -> None:
    user_config_file().parent.mkdir(parents=True, exist_ok=True)
    user_config_file().write_text(text)


CODER = """
[models]
swap = "on_demand"
follow = ["claude-*"]

[models.coder]
source = "org/Coder-7B"
aliases = ["sonnet"]
context = 32768
revision = "v1.0"
draft = "org/Small"
sampling = { temperature = 0.2, top_k = 20 }

[models."org/Other"]
source = "/models/other"
"""


def test_scalars_and_tables_stand_in_one_table() -> None:
    _write(CODER)
    models = load_settings().models
    assert (models.swap, models.follow) == ("on_demand", ("claude-*",))
    assert list(models.tables) == ["coder", "org/Other"]
    coder = models.tables["coder"]
    assert (coder.source, coder.aliases, coder.context) == ("org/Coder-7B", ("sonnet",), 32768)
    assert (coder.revision, coder.sampling.temperature, coder.sampling.top_p) == ("v1.0", 0.2, None)
    [entry] = [one for one in configured_models(load_settings()) if one.name == "coder"]
    assert entry.draft == "org/Small"


def test_the_environment_adds_tables_and_changes_fields(monkeypatch: pytest.MonkeyPatch) -> None:
    _write(CODER)
    tables = {"org/Third": {"source": "org/Third"}}
    monkeypatch.setenv("SEMANTIC_MODELS", json.dumps(tables))
    monkeypatch.setenv("SEMANTIC_MODELS__SWAP", "manual")
    monkeypatch.setenv("SEMANTIC_MODELS__CODER__CONTEXT", "1024")
    monkeypatch.setenv("SEMANTIC_MODELS__CODER__ALIASES", '["opus"]')
    monkeypatch.setenv("SEMANTIC_MODELS__CODER__SAMPLING__TEMPERATURE", "0.5")
    models = load_settings().models
    assert set(models.tables) == {"coder", "org/Other", "org/Third"}
    assert models.swap == "manual"
    coder = models.tables["coder"]
    assert (coder.context, coder.aliases) == (1024, ("opus",))
    assert (coder.sampling.temperature, coder.sampling.top_k) == (0.5, 20)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[models.swap]\nsource = 'x'", "a model may not be called swap"),
        ("[models]\nswop = 'manual'", r"swop is no setting of \[models\]"),
        ("[models]\nswap = 'sometimes'", "models.swap"),
        ("[models.a]", "models.a.source"),
        ("[models.a]\nsource = 'x'\ncontxt = 3", "models.a.contxt"),
        ("[models.a]\nsource = 'x'\ncontext = 3", "models.a.context"),
        ("[models.a]\nsource = 'x'\nsampling = { temperature = 3 }", "sampling.temperature"),
        ("[models.a]\nsource = 'x'\naliases = ['a b']", "models.a.aliases"),
        ("[models.'a b']\nsource = 'x'", "a model may not be called 'a b'"),
        (
            "[models.a]\nsource='x'\naliases=['s']\n[models.b]\nsource='y'\naliases=['s']",
            "the name s stands in models.a.aliases and in models.b.aliases",
        ),
        (
            "[models.a]\nsource='x'\naliases=['b']\n[models.b]\nsource='y'",
            "the name b stands in models.b and in models.a.aliases",
        ),
        (
            "[model]\nname='a'\nid='/m'\n[models.a]\nsource='x'",
            "the name a stands in models.a and in model.name",
        ),
    ],
)
def test_what_is_not_valid_is_named(text: str, message: str) -> None:
    _write(text)
    with pytest.raises(ValidationError, match=message):
        load_settings()


def test_each_value_of_a_table_has_its_origin(monkeypatch: pytest.MonkeyPatch) -> None:
    _write("[models.mine]\nsource = 'org/Mine'\n")
    named = Path("named.toml").absolute()
    named.write_text(CODER)
    monkeypatch.setenv("SEMANTIC_CONFIG", str(named))
    monkeypatch.setenv("SEMANTIC_MODELS__CODER__CONTEXT", "1024")
    shown = {setting.name: setting for setting in origins(load_settings(), {})}
    assert shown["models.coder.context"].origin == "environment"
    assert shown["models.coder.sampling.temperature"].origin == str(named)
    assert shown["models.coder.sampling.top_p"].origin == "default"
    assert shown["models.org/Other.source"].value == "/models/other"
    assert shown["models.mine.source"].origin == str(user_config_file())
    assert shown["models.swap"].origin == str(named)
