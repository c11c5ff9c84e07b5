"""Structured logs: one line per log event on stderr, from this code and from libraries.

What a client wrote is never logged. Callers do not pass it, values under the usual names of texts
are withheld here, and tracebacks are rendered without local variables and without the messages of
exceptions, which may quote a request.
"""

from __future__ import annotations

import logging
import os
import sys
import traceback
from collections.abc import Callable, Mapping
from typing import Any, TextIO, TypeAlias

import structlog
from structlog.typing import EventDict, ExcInfo, Processor, WrappedLogger

from ops.terminal_text import visible, visible_line

#: The type of logger arguments.
Logger: TypeAlias = structlog.stdlib.BoundLogger

#: Libraries that log every request or message at INFO.
NOISY_LOGGERS = (
    "actix_http",
    "actix_server",
    "alembic",
    "asyncio",
    "dramatiq",
    "filelock",
    "httpcore",
    "httpx",
    "huggingface_hub",
    "robyn",
    "transformers",
    "urllib3",
)
#: Keys of log events whose values may be texts of users.
WITHHELD_KEYS = frozenset(
    {"answer", "body", "content", "messages", "output", "prompt", "system", "text", "thinking"}
)
#: Environment variable that requests colour without a terminal (https://force-color.org).
FORCE_COLOR_ENV = "FORCE_COLOR"
_OUR_LOGGER = "semantic"
#: Keys of log events with several lines.
_OF_LINES = frozenset({"exception", "stack"})
#: ``06:42:21.735`` of an ISO instant.
_TIME_OF_DAY = slice(11, 23)


def configure_logging(
    part: str,
    *,
    level: str,
    format: str,  # noqa: A002 - the name of the setting
) -> Logger:
    """Send all logging of this process to stderr; call once, in a ``main``.

    Args:
        part: Which process this is: ``api``, ``worker``, ``broker``, ``serve``.
        level: Least level that is written, by name.
        format: ``console``, ``json``, or ``auto``: console on a terminal, else JSON lines.

    Returns:
        The logger to hand down.

    Raises:
        ValueError: There is no such level or format.
    """
    threshold = logging.getLevelNamesMapping().get(level.upper())
    if threshold is None:
        raise ValueError(f"log level {level!r} is none of DEBUG, INFO, WARNING, ERROR, CRITICAL")
    shared = _shared_processors(part)
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(_formatter(shared, _renderers(format)))
    root = logging.getLogger()
    for old in tuple(root.handlers):
        root.removeHandler(old)
    root.addHandler(handler)
    root.setLevel(threshold)
    for name in NOISY_LOGGERS:
        logging.getLogger(name).setLevel(max(threshold, logging.WARNING))
    structlog.configure(
        processors=[
            structlog.stdlib.filter_by_level,
            *shared,
            structlog.stdlib.ProcessorFormatter.wrap_for_formatter,
        ],
        wrapper_class=structlog.stdlib.BoundLogger,
        logger_factory=structlog.stdlib.LoggerFactory(),
        cache_logger_on_first_use=False,
    )
    logger: Logger = structlog.stdlib.get_logger(_OUR_LOGGER)
    return logger


def add_json_lines(part: str, put: Callable[[str], None]) -> None:
    """Hand every log event of this process to ``put`` as a JSON line too."""
    handler = _LineHandler(put)
    handler.setFormatter(_formatter(_shared_processors(part), _json_renderers()))
    logging.getLogger().addHandler(handler)


def console_lines(*, coloured: bool) -> Callable[[Mapping[str, object]], str]:
    """Return what renders an event of a JSON line as a terminal shows it."""
    renderer = _console_renderer(coloured=coloured)

    def render(event: Mapping[str, object]) -> str:
        shown = {**_visible(event), "event": visible_line(str(event.get("message", "")))}
        for name in ("message", "pid", "part"):
            shown.pop(name, None)
        if shown.get("logger") == _OUR_LOGGER:
            del shown["logger"]
        shown["timestamp"] = str(shown.get("timestamp", ""))[_TIME_OF_DAY]
        return str(renderer(None, "", shown))

    return render


def withhold_texts(_logger: WrappedLogger, _method: str, event: EventDict) -> EventDict:
    """Replace the texts of users by their length."""
    for key in WITHHELD_KEYS & event.keys():
        value = event[key]
        size = f" {len(value)} long" if isinstance(value, str | bytes | list | tuple) else ""
        event[key] = f"<withheld{size}>"
    return event


def _shared_processors(part: str) -> list[Processor]:
    origin = {"part": part, "pid": os.getpid()}

    def add_origin(_logger: WrappedLogger, _method: str, event: EventDict) -> EventDict:
        for key, value in origin.items():
            event.setdefault(key, value)
        return event

    return [
        structlog.contextvars.merge_contextvars,
        structlog.stdlib.add_log_level,
        structlog.stdlib.add_logger_name,
        structlog.stdlib.PositionalArgumentsFormatter(),
        structlog.processors.TimeStamper(fmt="iso", utc=True),
        add_origin,
        withhold_texts,
        structlog.processors.StackInfoRenderer(),
    ]


def _renderers(format_name: str) -> list[Processor]:
    if format_name not in {"auto", "console", "json"}:
        raise ValueError(f"log format {format_name!r} is none of auto, console, json")
    on_terminal = sys.stderr.isatty()
    if format_name == "console" or (format_name == "auto" and on_terminal):
        coloured = on_terminal or bool(os.environ.get(FORCE_COLOR_ENV))
        return [_shorten, _show_controls, _console_renderer(coloured=coloured)]
    return _json_renderers()


def _console_renderer(*, coloured: bool) -> structlog.dev.ConsoleRenderer:
    return structlog.dev.ConsoleRenderer(
        colors=coloured,
        # The default shows the local variables of every frame, prompts among them.
        exception_formatter=_visible_traceback,
    )


def _formatter(
    shared: list[Processor], renderers: list[Processor]
) -> structlog.stdlib.ProcessorFormatter:
    return structlog.stdlib.ProcessorFormatter(
        foreign_pre_chain=shared,
        processors=[structlog.stdlib.ProcessorFormatter.remove_processors_meta, *renderers],
    )


def _json_renderers() -> list[Processor]:
    return [
        structlog.processors.ExceptionRenderer(_traceback_of),
        structlog.processors.EventRenamer("message"),
        structlog.processors.JSONRenderer(ensure_ascii=False),
        _show_controls_of_json,
    ]


def _show_controls(_logger: WrappedLogger, _method: str, event: EventDict) -> EventDict:
    """Replace control characters of texts from elsewhere, before colours are added."""
    return _visible(event)


def _show_controls_of_json(_logger: WrappedLogger, _method: str, line: Any) -> str:  # noqa: ANN401 - the text of the renderer before
    """Escape in a JSON line what a terminal would obey and JSON leaves as it is."""
    return visible_line(line)


def _visible(event: Mapping[str, object]) -> dict[str, object]:
    """Return an event whose texts cannot control a terminal; tracebacks keep their lines."""
    return {
        visible_line(name): (
            value
            if value is None or isinstance(value, int | float | BaseException | tuple)
            else (visible if name in _OF_LINES else visible_line)(str(value))
        )
        for name, value in event.items()
    }


def _visible_traceback(output: TextIO, info: ExcInfo) -> None:
    output.write(visible(_traceback_of(info)))


def _traceback_of(exc_info: ExcInfo) -> str:
    """Return the frames and types of an exception and of its causes, the latest first."""
    parts: list[str] = []
    left: list[BaseException | None] = [exc_info[1]]
    seen: set[int] = set()
    while left:
        error = left.pop()
        if error is None or id(error) in seen:
            continue
        seen.add(id(error))
        kind = f"{type(error).__module__}.{type(error).__qualname__}".removeprefix("builtins.")
        why = f": {error.strerror}" if isinstance(error, OSError) and error.strerror else ""
        frames = "".join(traceback.format_tb(error.__traceback__))
        parts.append(f"Traceback (most recent call last):\n{frames}{kind}{why}")
        left.append(error.__cause__ or (None if error.__suppress_context__ else error.__context__))
        if isinstance(error, BaseExceptionGroup):
            left += error.exceptions
    return "\n\nafter:\n\n".join(parts)


def _shorten(_logger: WrappedLogger, _method: str, event: EventDict) -> EventDict:
    """Drop fields that a reader at a terminal does not need; the JSON form keeps them."""
    if event.get("logger") == _OUR_LOGGER:
        del event["logger"]
    del event["pid"]
    event["timestamp"] = event["timestamp"][_TIME_OF_DAY]
    return event


class _LineHandler(logging.Handler):
    """Hands formatted events on."""

    def __init__(self, put: Callable[[str], None]) -> None:
        super().__init__()
        self._put = put

    def emit(self, record: logging.LogRecord) -> None:
        try:
            self._put(self.format(record))
        except Exception:  # noqa: BLE001 - as every handler of the library does
            self.handleError(record)
