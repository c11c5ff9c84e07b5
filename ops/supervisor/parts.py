"""The processes of a service, and their settings as environment variables."""

from __future__ import annotations

import json
import os
import sys
import tomllib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final

from pydantic import BaseModel, SecretStr

from ops.settings.api_keys import ApiKey, read_keys
from ops.settings.models import ModelsSettings
from ops.settings.places import user_config_file
from ops.settings.settings import USER_MODELS_ENV, Settings

BROKER, WORKER, API = "broker", "worker", "api"
#: Name of the worker's standby in the record of the service.
STANDBY = "standby"

#: Time after its drain deadline before the api is killed, in seconds.
API_MARGIN_S = 5.0
#: The same for the worker, which joins its threads in turn and appends its last events.
WORKER_MARGIN_S = 15.0
#: Age of a worker at which its standby starts, in seconds: after the load of a small model, and not
#: within a crash loop.
STANDBY_AFTER_S = 5.0
#: Least time without a heartbeat after which a worker is replaced, in seconds.
WORKER_SILENCE_S = 15.0
#: Time for the broker to write its data, in seconds.
BROKER_GRACE_S = 10.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """A process that the supervisor keeps alive.

    Attributes:
        name: Short name; it prefixes the part's lines on the terminal.
        grace_s: Seconds it has to end after SIGTERM.
        silence_max_s: Longest pause between two heartbeats, in seconds; 0 disables the check.
        standby_argv: Command of its standby, which becomes the part once it is activated; empty
            for a part without one.
        standby_after_s: Age of the part at which its standby starts, in seconds.
    """

    name: str
    argv: tuple[str, ...]
    grace_s: float
    silence_max_s: float = 0.0
    standby_argv: tuple[str, ...] = ()
    standby_after_s: float = STANDBY_AFTER_S


@dataclass(frozen=True, slots=True, kw_only=True)
class Parts:
    """All parts of a service; ``broker`` is ``None`` where an external one is configured."""

    broker: Part | None
    worker: Part
    api: Part

    def last_to_first(self) -> tuple[Part, ...]:
        """Return the parts in the order in which they are stopped."""
        return (self.api, self.worker, *([self.broker] if self.broker else []))


def module_argv(module: str) -> tuple[str, ...]:
    """Return the command that runs a module of this project.

    ``-P`` keeps the working directory out of the search path: a user's project may have packages
    named ``api`` or ``worker``.
    """
    return (sys.executable, "-P", "-m", module)


def parts_of(settings: Settings) -> Parts:
    """Return the real parts."""
    broker = Part(name=BROKER, argv=module_argv("ops.broker"), grace_s=BROKER_GRACE_S)
    limit_s = settings.engine.step_limit_s
    return Parts(
        broker=None if settings.redis.url else broker,
        worker=Part(
            name=WORKER,
            argv=module_argv("worker.main"),
            grace_s=settings.server.drain_s + WORKER_MARGIN_S,
            # A slow step may hold the interpreter's lock.
            silence_max_s=max(WORKER_SILENCE_S, limit_s / 4) if limit_s else 0.0,
            standby_argv=module_argv("worker.standby") if settings.jobs.keeps_standby else (),
        ),
        api=Part(
            name=API,
            argv=module_argv("api.main"),
            grace_s=settings.server.drain_s + API_MARGIN_S,
        ),
    )


#: Directory that holds the packages ``api``, ``worker`` and ``ops``.
PACKAGE_ROOT = Path(__file__).resolve().parents[2]
_PREFIX = "SEMANTIC_"
#: The variables of a child hold the values of the configuration files, so it reads none of them,
#: except the models of the user's file.
_NO_CONFIG_FILE = {"SEMANTIC_CONFIG": os.devnull}
#: Only commands send this key; no part needs it.
_OWN_KEY = "SEMANTIC_API_KEY"
#: Free memory at the end of the heap that is not given back to the system.
_FREE_KEPT_BYTES = 2**31
#: Variables that glibc reads when a process starts; see mallopt(3). By default glibc maps each
#: large allocation anew and unmaps it when it is freed, so that each gather of a context pays a
#: page fault per 4 kB. With these up to ``_FREE_KEPT_BYTES`` of free memory stay mapped.
LARGE_ARRAYS: Final[Mapping[str, str]] = MappingProxyType(
    {
        "MALLOC_MMAP_THRESHOLD_": str(2**30),
        "MALLOC_TRIM_THRESHOLD_": str(_FREE_KEPT_BYTES),
        "MALLOC_TOP_PAD_": str(2**26),
    }
)
#: By default glibc has eight heaps for each processor, and each keeps the memory that its threads
#: free. One thread of Python runs at a time, so more heaps than two gain nothing.
MANY_THREADS: Final[Mapping[str, str]] = MappingProxyType({"MALLOC_ARENA_MAX": "2"})


def read_user_models() -> dict[str, Any]:
    """Return ``[models]`` of the user's file; empty where the file cannot be read."""
    try:
        models = tomllib.loads(user_config_file().read_text()).get("models", {})
    except (OSError, ValueError):
        return {}
    return models if isinstance(models, dict) else {}


def settings_environment(settings: Settings, user_models: Mapping[str, Any]) -> dict[str, str]:
    """Return the variables that make ``load_settings()`` give the same values in a child.

    ``None`` has no form in the environment and is left out: no source had set it. The part of
    ``[models]`` that stands in the user's file is left out too: a child reads it there, and again
    when it changes.

    Args:
        user_models: ``[models]`` of the user's file when the settings were read.
    """
    absolute = settings.model_copy(update={"data_dir": settings.data_dir.absolute()})
    variables = dict(_variables(absolute, user_models))
    return variables | {USER_MODELS_ENV: json.dumps(user_models, default=str)}


def child_environment(
    inherited: Mapping[str, str],
    settings: Settings,
    extra: Mapping[str, str],
    user_models: Mapping[str, Any] | None = None,
) -> dict[str, str]:
    """Return the whole environment of a part.

    Args:
        inherited: The supervisor's own; spellings of our variables in other cases are dropped,
            since names are read without regard to case.
        extra: Variables of this child that override all others.
        user_models: ``[models]`` of the user's file when the settings were read; default: as it is
            now.
    """
    own = read_user_models() if user_models is None else user_models
    digests = read_keys(key.get_secret_value() for key in settings.server.api_keys)
    ours = settings_environment(with_keys(settings, digests), own) | _NO_CONFIG_FILE | dict(extra)
    dropped = {*ours, _OWN_KEY}
    kept = {name: value for name, value in inherited.items() if name.upper() not in dropped}
    search = [str(PACKAGE_ROOT), *filter(None, [kept.get("PYTHONPATH", "")])]
    return kept | {"PYTHONPATH": os.pathsep.join(search), "PYTHONUNBUFFERED": "1"} | ours


def with_keys(settings: Settings, keys: Iterable[ApiKey]) -> Settings:
    """Return the settings with these keys only, as digests."""
    texts = tuple(SecretStr(key.text) for key in keys)
    server = settings.server.model_copy(update={"api_keys": texts})
    return settings.model_copy(update={"server": server, "api_key": None})


def allocator_environment(
    wanted: Mapping[str, str], inherited: Mapping[str, str], platform: str = sys.platform
) -> dict[str, str]:
    """Return the variables of the C library's allocator for a process.

    Other C libraries than glibc have none. Values that the user has set stay.

    Args:
        wanted: ``LARGE_ARRAYS`` or ``MANY_THREADS``.
    """
    if platform != "linux" or "glibc.malloc." in inherited.get("GLIBC_TUNABLES", ""):
        return {}
    return {name: value for name, value in wanted.items() if name not in inherited}


def with_json_logs(settings: Settings) -> Settings:
    """Return the settings of children, which write to a pipe that their supervisor reads."""
    return settings.model_copy(update={"log": settings.log.model_copy(update={"format": "json"})})


def _variables(settings: Settings, user_models: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    for name, value in settings:
        if isinstance(value, ModelsSettings):
            yield f"{_PREFIX}{name}".upper(), json.dumps(_models_elsewhere(value, user_models))
        elif isinstance(value, BaseModel):
            for field, inner in value:
                if inner is not None:
                    yield f"{_PREFIX}{name}__{field}".upper(), _encode(inner)
        elif value is not None:
            yield f"{_PREFIX}{name}".upper(), _encode(value)


def _models_elsewhere(models: ModelsSettings, own: Mapping[str, Any]) -> dict[str, Any]:
    """Return the part of ``[models]`` that differs from the user's file."""
    given = models.model_dump(mode="json", exclude_unset=True)
    return {name: value for name, value in given.items() if own.get(name) != value}


def _encode(value: object) -> str:
    if isinstance(value, str | Path):
        return str(value)
    if isinstance(value, SecretStr):
        return value.get_secret_value()
    return json.dumps(value, default=_encode)
