"""Who wins where several sources set the same value."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest
import typer
from pydantic import ValidationError
from pydantic_settings import SettingsError

from ops.cli.options import settings_or_exit
from ops.cli.service.config import origins
from ops.exit_codes import ExitCode
from ops.settings.models import DEMO_MODEL
from ops.settings.places import user_config_file
from ops.settings.service import JobSettings
from ops.settings.settings import ConfigFileError, load_settings
from ops.settings.trusted_files import read_directory, trust


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where no file and no variable of the real user is seen."""
    here = tmp_path / "work"
    here.mkdir()
    monkeypatch.chdir(here)
    monkeypatch.setenv("HOME", str(tmp_path))
    return tmp_path


def _user_file(text: str) -> None:
    user_config_file().parent.mkdir(parents=True)
    user_config_file().write_text(text)


def _origin_of(name: str, **given: object) -> str:
    found = origins(load_settings(**given), given)
    return next(setting.origin for setting in found if setting.name == name)


def test_without_any_source_the_defaults_hold(home: Path) -> None:
    settings = load_settings()
    assert settings.server.port == 8000
    assert settings.model.id == DEMO_MODEL
    assert settings.data_dir.is_relative_to(home)
    assert settings.log_url == f"sqlite:///{settings.data_dir}/events.sqlite3"


def test_each_source_beats_the_ones_below_it(monkeypatch: pytest.MonkeyPatch) -> None:
    seen = [(load_settings().server.port, _origin_of("server.port"))]
    _user_file("[server]\nport = 1\n")
    seen.append((load_settings().server.port, _origin_of("server.port")))
    named = Path("named.toml").absolute()
    named.write_text("[server]\nport = 2\n")
    monkeypatch.setenv("SEMANTIC_CONFIG", str(named))
    seen.append((load_settings().server.port, _origin_of("server.port")))
    monkeypatch.setenv("SEMANTIC_SERVER__PORT", "4")
    seen.append((load_settings().server.port, _origin_of("server.port")))
    given = {"server": {"port": 5}}
    seen.append((load_settings(**given).server.port, _origin_of("server.port", **given)))
    assert seen == [
        (8000, "default"),
        (1, str(user_config_file())),
        (2, str(named)),
        (4, "environment"),
        (5, "command line"),
    ]


def test_files_of_the_working_directory_are_not_read() -> None:
    Path("semantic.toml").write_text("[server]\nport = 2\n")
    Path(".env").write_text("SEMANTIC_SERVER__PORT=3\n")
    assert load_settings().server.port == 8000


def test_trusted_file_of_the_directory_is_above_the_users_own(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    _user_file("[server]\nport = 1\ndrain_s = 1.5\n")
    Path("semantic.toml").write_text("[server]\nport = 2\n")
    trust(Path())
    here, _ = read_directory(Path())
    assert here is not None
    Path("semantic.toml").write_text("[server]\nport = 9\n")  # read once, with its digest
    server = load_settings(directory_file=here).server
    assert (server.port, server.drain_s) == (2, 1.5)
    assert _origin_of("server.port", directory_file=here) == str(here.path)
    Path("named.toml").write_text("[server]\nport = 3\n")
    monkeypatch.setenv("SEMANTIC_CONFIG", "named.toml")
    assert load_settings(directory_file=here).server.port == 3


def test_users_own_file_stands_where_the_environment_says(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _user_file("[server]\nport = 1\n")
    monkeypatch.setenv("XDG_CONFIG_HOME", str(home / "elsewhere"))
    assert load_settings().server.port == 8000
    _user_file("[server]\nport = 2\n")
    assert (home / "elsewhere" / "semantic" / "semantic.toml").exists()
    assert load_settings().server.port == 2
    monkeypatch.setenv("XDG_CONFIG_HOME", "relative")
    assert load_settings().server.port == 1


def test_named_file_is_above_the_users_own(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _user_file("[server]\nport = 1\ndrain_s = 1.5\n")
    named, other = home / "named.toml", home / "other.toml"
    named.write_text("[server]\nport = 3\nhost = '127.0.0.3'\n")
    other.write_text("[server]\nport = 4\n")
    monkeypatch.setenv("SEMANTIC_CONFIG", str(named))
    monkeypatch.setenv("SEMANTIC_SERVER__HOST", "127.0.0.5")
    server = load_settings().server
    assert (server.port, server.host, server.drain_s) == (3, "127.0.0.5", 1.5)
    assert _origin_of("server.port") == str(named)
    assert load_settings(config=other).server.port == 4
    assert _origin_of("server.port", config=other) == str(other)
    assert _origin_of("server.drain_s") == str(user_config_file())


def test_file_is_named_from_the_home_directory_and_an_empty_name_is_none(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (home / "named.toml").write_text("[server]\nport = 3\n")
    monkeypatch.setenv("SEMANTIC_CONFIG", "~/named.toml")
    assert load_settings().server.port == 3
    monkeypatch.setenv("SEMANTIC_CONFIG", "")
    assert load_settings().server.port == 8000


@pytest.mark.parametrize(
    ("content", "complaint"),
    [
        (None, "named.toml cannot be read: No such file"),
        (b"port = = 3", "named.toml is not valid TOML"),
        (b"\xff", "named.toml is not valid TOML"),
        (b"config = 'other.toml'", "named.toml cannot name another one"),
    ],
)
def test_named_file_that_cannot_be_used_is_an_error(
    home: Path, content: bytes | None, complaint: str
) -> None:
    if content is not None:
        (home / "named.toml").write_bytes(content)
    with pytest.raises(ConfigFileError, match=complaint):
        load_settings(config=home / "named.toml")


def test_sources_add_up_inside_a_group(monkeypatch: pytest.MonkeyPatch) -> None:
    _user_file("[server]\nport = 2\nhost = '127.0.0.2'\n")
    monkeypatch.setenv("SEMANTIC_SERVER__DRAIN_S", "1.5")
    server = load_settings(server={"port": 5}).server
    assert (server.port, server.host, server.drain_s) == (5, "127.0.0.2", 1.5)


def test_nested_tuple_comes_from_json(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SEMANTIC_MODELS__FOLLOW", '["sonnet", "opus"]')
    assert load_settings().models.follow == ("sonnet", "opus")


@pytest.mark.parametrize(
    ("variable", "value", "named"),
    [
        ("SEMANTIC_SERVER__PORT", "70000", ("server", "port")),
        ("SEMANTIC_SERVER__PORT", "http", ("server", "port")),
        ("SEMANTIC_LOG__FORMAT", "xml", ("log", "format")),
        ("SEMANTIC_ENGINE__MAX_BATCH_SIZE", "0", ("engine", "max_batch_size")),
        ("SEMANTIC_SERVER__PROT", "1", ("server", "prot")),
    ],
)
def test_value_that_is_not_valid_is_named(
    variable: str, value: str, named: tuple[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(variable, value)
    with pytest.raises(ValidationError) as caught:
        load_settings()
    assert [fault["loc"] for fault in caught.value.errors()] == [named]


def test_group_that_is_no_json_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SEMANTIC_SERVER", "{")
    with pytest.raises(SettingsError, match="server"):
        load_settings()


def test_settings_cannot_be_changed_afterwards() -> None:
    settings = load_settings()
    with pytest.raises(ValidationError):
        settings.data_dir = Path("/elsewhere")
    with pytest.raises(ValidationError):
        settings.server.port = 1


def test_passwords_in_urls_are_not_shown() -> None:
    given = {"redis": {"url": "redis://me:secret@127.0.0.1:1/0"}}
    shown = {setting.name: setting.value for setting in origins(load_settings(**given), given)}
    assert shown["redis.url"] == "redis://***@127.0.0.1:1/0"


@pytest.mark.parametrize(
    ("memory_gb", "chosen", "keeps"),
    [(5.9, None, False), (6.1, None, True), (5.9, True, True), (6.1, False, False)],
)
def test_standby_needs_memory_unless_it_is_chosen(
    monkeypatch: pytest.MonkeyPatch, memory_gb: float, *, chosen: bool | None, keeps: bool
) -> None:
    memory = SimpleNamespace(total=int(memory_gb * 1e9))
    monkeypatch.setattr("psutil.virtual_memory", lambda: memory)
    assert JobSettings(worker_standby=chosen).keeps_standby is keeps


@pytest.mark.parametrize(
    ("variable", "file", "line"),
    [
        ("SEMANTIC_SERVR__PORT", "", "servr: there is no such setting; did you mean server?"),
        (
            "semantic_server__prot",
            "",
            "server.prot: there is no such setting; did you mean server.port?",
        ),
        ("", "[servr]\nport = 1", "servr: there is no such setting; did you mean server?"),
        ("", "[server]\nfoo = 1", "server.foo: there is no such setting"),
        ("", "port = 1", "port: there is no such setting"),
        (
            "",
            '[models.a]\nsource = "x"\ndrft = "y"',
            "models.a.drft: there is no such setting; did you mean models.a.draft?",
        ),
    ],
)
def test_a_setting_that_does_not_exist_is_refused_with_the_nearest_one(
    variable: str,
    file: str,
    line: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    if variable:
        monkeypatch.setenv(variable, "1")
    _user_file(file)
    with pytest.raises(typer.Exit) as exit_:
        settings_or_exit({})
    assert exit_.value.exit_code == ExitCode.CONFIG
    assert capsys.readouterr().err == f"semantic: setting {line}\n"


def test_variables_of_other_programs_are_no_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SEMANTIC_PORT", "tcp://127.0.0.1:80")
    monkeypatch.setenv("SEMANTIC_SERVICE_HOST", "127.0.0.1")
    monkeypatch.setenv("OTHER_SEMANTIC_SERVR__PORT", "1")
    assert load_settings().server.port == 8000
