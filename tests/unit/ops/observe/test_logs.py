"""What the logs look like, and what never stands in them."""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Iterator
from typing import Any

import pytest
import structlog

from ops.observe.logs import NOISY_LOGGERS, configure_logging


@pytest.fixture(autouse=True)
def _logging_as_before() -> Iterator[None]:
    root = logging.getLogger()
    handlers, level = list(root.handlers), root.level
    levels = {name: logging.getLogger(name).level for name in NOISY_LOGGERS}
    yield
    root.handlers[:] = handlers
    root.setLevel(level)
    for name, before in levels.items():
        logging.getLogger(name).setLevel(before)
    structlog.reset_defaults()


def _lines(captured: pytest.CaptureFixture[str]) -> list[dict[str, Any]]:
    return [json.loads(line) for line in captured.readouterr().err.splitlines()]


def test_off_a_terminal_auto_writes_json_with_part_pid_and_utc_time(
    capsys: pytest.CaptureFixture[str],
) -> None:
    configure_logging("worker", level="INFO", format="auto").info("job taken", job_id="job-1")
    (line,) = _lines(capsys)
    assert line["message"] == "job taken"
    assert line["level"] == "info"
    assert line["part"] == "worker"
    assert line["pid"] == os.getpid()
    assert line["job_id"] == "job-1"
    assert line["timestamp"].endswith("Z")


def test_logging_of_libraries_takes_the_same_form(capsys: pytest.CaptureFixture[str]) -> None:
    configure_logging("api", level="INFO", format="json")
    logging.getLogger("some.library").warning("%s of %d", "one", 3)
    (line,) = _lines(capsys)
    assert line["message"] == "one of 3"
    assert line["part"] == "api"
    assert line["logger"] == "some.library"


@pytest.mark.parametrize("name", ["dramatiq.worker", "robyn", "alembic.runtime", "httpx"])
def test_chatter_of_libraries_is_dropped_and_their_warnings_kept(
    name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    configure_logging("api", level="DEBUG", format="json")
    logging.getLogger(name).info("chatter")
    logging.getLogger(name).warning("trouble")
    assert [line["message"] for line in _lines(capsys)] == ["trouble"]


def test_below_the_level_nothing_is_written(capsys: pytest.CaptureFixture[str]) -> None:
    logger = configure_logging("api", level="warning", format="json")
    logger.info("hidden")
    logger.warning("seen")
    assert [line["message"] for line in _lines(capsys)] == ["seen"]


def test_second_call_does_not_double_the_lines(capsys: pytest.CaptureFixture[str]) -> None:
    configure_logging("api", level="INFO", format="json")
    configure_logging("api", level="INFO", format="json").info("once")
    assert len(_lines(capsys)) == 1


@pytest.mark.parametrize("style", ["json", "console"])
def test_texts_of_users_are_withheld(style: str, capsys: pytest.CaptureFixture[str]) -> None:
    logger = configure_logging("worker", level="INFO", format=style)
    logger.info("taken", prompt="my secret", messages=["my secret"], tokens=4)
    written = capsys.readouterr().err
    assert "secret" not in written
    assert "<withheld 9 long>" in written


@pytest.mark.parametrize("style", ["json", "console"])
def test_tracebacks_show_no_local_variables(style: str, capsys: pytest.CaptureFixture[str]) -> None:
    logger = configure_logging("worker", level="INFO", format=style)

    def fail(question: str) -> None:
        raise RuntimeError(str(len(question)))

    try:
        fail("my " + "secret")
    except RuntimeError:
        logger.exception("failed")
    written = capsys.readouterr().err
    assert "RuntimeError" in written
    assert "my secret" not in written


@pytest.mark.parametrize("style", ["json", "console"])
def test_tracebacks_show_no_messages_of_exceptions(
    style: str, capsys: pytest.CaptureFixture[str]
) -> None:
    logger = configure_logging("worker", level="INFO", format=style)
    secret = "my secret"
    nothing: dict[str, str] = {}

    def fail() -> None:
        try:
            nothing[secret]
        except KeyError as error:
            raise ExceptionGroup(secret, [OSError(28, "No space left", secret)]) from error

    try:
        fail()
    except ExceptionGroup as error:
        logger.warning("failed", exc_info=error)
        logging.getLogger("some.library").exception("failed too")
    written = capsys.readouterr().err
    assert "my secret" not in written
    for shown in ("KeyError", "ExceptionGroup", "OSError: No space left", "test_logs.py"):
        assert written.count(shown) >= 2, shown


def test_console_form_is_for_people(capsys: pytest.CaptureFixture[str]) -> None:
    configure_logging("api", level="INFO", format="console").info("listening", port=8000)
    written = capsys.readouterr().err
    assert "listening" in written
    assert "port=8000" in written
    assert "part=api" in written
    assert not written.startswith("{")


@pytest.mark.parametrize(("level", "style"), [("LOUD", "json"), ("INFO", "xml")])
def test_unknown_level_or_format_is_named(level: str, style: str) -> None:
    with pytest.raises(ValueError, match=r"LOUD|xml"):
        configure_logging("api", level=level, format=style)
