"""A model is added to a configuration file and removed from it; all other lines stay."""

from __future__ import annotations

import stat
import tomllib
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ops.models.config_file import NotEditable, add_table, remove_table, tables_of

TEXT = """\
# My models.
[server]
port = 8123  # not 8000

[models]
swap = "manual"

# The one for code.
[models.coder]
source = "org/Coder"   # a hub id
aliases = [
  "sonnet",  # for Claude Code
]

[models.coder.sampling]
temperature = 0.2

# The one for prose.
[models."org/Prose"]
source = "org/Prose"
# the end
"""
PLAIN = {"source": "org/New", "aliases": ["n1", "n2"], "sampling": {"temperature": 0.5}}


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "semantic.toml"
    path.write_text(TEXT)
    return path


def test_a_table_is_appended_and_every_line_before_it_stays(file: Path) -> None:
    add_table(file, "org/New", PLAIN)
    text = file.read_text()
    assert text.startswith(TEXT)
    assert text.removeprefix(TEXT) == (
        '\n[models."org/New"]\nsource = "org/New"\naliases = ["n1", "n2"]\n'
        "sampling = { temperature = 0.5 }\n"
    )
    assert tables_of(file)["org/New"] == PLAIN


def test_a_file_that_does_not_exist_begins_with_the_table(tmp_path: Path) -> None:
    file = tmp_path / "new" / "semantic.toml"
    add_table(file, "a", {"source": "/m"})
    assert file.read_text() == '[models.a]\nsource = "/m"\n'


def test_a_table_goes_with_its_subtables_and_its_neighbours_stay(file: Path) -> None:
    remove_table(file, "coder")
    before, _, rest = TEXT.partition("[models.coder]")
    assert file.read_text() == before + rest[rest.index("\n# The one for prose.") :]
    remove_table(file, "org/Prose")
    assert tables_of(file) == {"swap": "manual"}
    assert file.read_text().endswith("# the end\n")


@pytest.mark.parametrize(
    "text",
    [
        "models = { a = { source = 'x' } }\n",
        "[models]\na = { source = 'x' }\n",
        "[models]\na.source = 'x'\n",
        "[models.a]\nsource = '''x\n[server]\n'''\n",
    ],
)
def test_a_form_that_is_not_understood_is_left_as_it_is(tmp_path: Path, text: str) -> None:
    file = tmp_path / "semantic.toml"
    file.write_text(text)
    with pytest.raises(NotEditable, match=r"\[models.a\] must be edited by hand"):
        remove_table(file, "a")
    assert file.read_text() == text


def test_a_second_table_of_one_name_is_not_written(file: Path) -> None:
    with pytest.raises(NotEditable, match="by hand"):
        add_table(file, "coder", PLAIN)
    assert file.read_text() == TEXT


def test_a_broken_file_is_named(tmp_path: Path) -> None:
    file = tmp_path / "semantic.toml"
    file.write_text("[models")
    with pytest.raises(NotEditable, match=r"semantic\.toml is not valid TOML"):
        add_table(file, "a", PLAIN)


def test_the_ends_of_lines_stay(tmp_path: Path) -> None:
    file = tmp_path / "semantic.toml"
    file.write_bytes(b"[server]\r\nport = 1\r\n\r\n[models.a]\r\nsource = 'x'\r\n")
    remove_table(file, "a")
    assert file.read_bytes() == b"[server]\r\nport = 1\r\n\r\n"


def test_a_link_and_the_mode_of_the_file_stay(tmp_path: Path, file: Path) -> None:
    file.chmod(0o640)
    link = tmp_path / "link.toml"
    link.symlink_to(file)
    add_table(link, "a", PLAIN)
    assert link.is_symlink()
    assert stat.S_IMODE(file.stat().st_mode) == 0o640
    assert "a" in tables_of(file)
    assert [path.name for path in tmp_path.iterdir() if path.name.startswith(".")] == []


_NAMES = st.text(st.characters(codec="utf-8", exclude_categories=["Cs", "Cc"]), min_size=1)


@given(names=st.lists(_NAMES, min_size=1, max_size=4, unique=True), source=_NAMES)
def test_what_is_added_is_read_and_what_is_removed_is_gone(
    tmp_path_factory: pytest.TempPathFactory, names: list[str], source: str
) -> None:
    file = tmp_path_factory.mktemp("config") / "semantic.toml"
    file.write_text(TEXT)
    known = tomllib.loads(TEXT)
    fresh = [name for name in names if name not in {"swap", "coder", "org/Prose"}]
    for name in fresh:
        add_table(file, name, {"source": source})
    assert {name: tables_of(file)[name]["source"] for name in fresh} == dict.fromkeys(fresh, source)
    for name in fresh:
        remove_table(file, name)
    assert tomllib.loads(file.read_text()) == known
