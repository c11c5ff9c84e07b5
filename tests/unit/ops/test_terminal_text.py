"""Texts from elsewhere cannot control a terminal, and JSON keeps its meaning."""

from __future__ import annotations

import io
import json
import sys
import unicodedata
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from ops.cli.output import pair_lines, print_table
from ops.cli.service.logs import _plain
from ops.observe.logs import configure_logging, console_lines
from ops.supervisor.output import json_line
from ops.supervisor.serve import _as_it_is, _console_line
from ops.supervisor.startup_banner import StartupBanner
from ops.terminal_text import visible, visible_line
from tests.support.hostile_text import HOSTILE, controls

_JOINERS = {"\u200c", "\u200d"}


@given(st.text(st.characters(exclude_categories=())))
def test_no_control_or_direction_is_left(text: str) -> None:
    for shown in (visible(text), visible_line(text)):
        assert controls(shown) == []
        shown.encode()  # no surrogates
        kinds = {unicodedata.bidirectional(char) for char in shown}
        assert not kinds & {"LRE", "RLE", "LRO", "RLO", "PDF", "LRI", "RLI", "FSI", "PDI"}
    assert "\n" not in visible_line(text)


@given(st.text(st.characters(exclude_categories=("Cc", "Cf", "Cs", "Zl", "Zp"))))
def test_other_text_stays_as_it_is(text: str) -> None:
    assert visible(text) == visible_line(text) == text


def test_lines_tabs_and_joiners_stay() -> None:
    text = "a\tb\n" + "".join(sorted(_JOINERS))
    assert visible(text) == text
    assert visible_line("a\tb\n") == "a\\u0009b\\u000a"


@given(st.dictionaries(st.text(), st.text(st.characters(exclude_categories=()))))
def test_json_keeps_its_meaning(value: dict[str, str]) -> None:
    text = json.dumps(value, indent=2, ensure_ascii=False)
    assert json.loads(visible(text)) == json.loads(json.dumps(value))


def _banner() -> str:
    output = io.StringIO()
    banner = StartupBanner(Console(file=output))
    banner.begin(version=HOSTILE, page="p", data_dir=Path(HOSTILE))
    banner.log(HOSTILE, HOSTILE)
    banner.broker(HOSTILE, 1, HOSTILE)
    banner.not_ready_yet(HOSTILE, 1)
    return output.getvalue()


def _event() -> str:
    return json.dumps(
        {"message": HOSTILE, "level": "info", "agent": HOSTILE, "exception": HOSTILE, HOSTILE: 1}
    )


@pytest.mark.parametrize(
    "show",
    [
        lambda: _plain(_event()),
        lambda: _plain(HOSTILE),
        lambda: _as_it_is("api", HOSTILE),
        lambda: _console_line(coloured=False)("api", HOSTILE),
        lambda: _console_line(coloured=False)("api", _event()),
        lambda: json_line("api", HOSTILE),
        lambda: console_lines(coloured=False)(json.loads(_event())),
        lambda: pair_lines([("model", HOSTILE)])[0],
        _banner,
    ],
)
def test_what_the_service_prints(show: Callable[[], str]) -> None:
    shown = show()
    assert controls(shown) == []
    assert "\\u001b" in shown.replace("\\\\", "\\")


@pytest.mark.parametrize("style", ["console", "json"])
def test_log_lines_and_tracebacks(style: str, monkeypatch: pytest.MonkeyPatch) -> None:
    output = io.StringIO()
    monkeypatch.setattr(sys, "stderr", output)
    logger = configure_logging("api", level="INFO", format=style)
    try:
        int(HOSTILE)
    except ValueError as error:
        error.add_note(HOSTILE)
        logger.exception("failed", agent=HOSTILE, why=[HOSTILE])
    logger.info(HOSTILE, user_agent=HOSTILE)
    assert controls(output.getvalue()) == []
    assert output.getvalue().count("u001b") >= 4


def test_cells_of_a_table(capsys: pytest.CaptureFixture[str]) -> None:
    print_table(("name", "text"), [("a", HOSTILE), ("b\nc", "d")])
    shown = capsys.readouterr().out
    assert controls(shown) == []
    assert shown.count("\n") == 3
