"""Settings of the service: its socket, queue, engine, cache, disk, logs, spans and webhooks."""

from __future__ import annotations

from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated, Final, Literal, Self

import psutil
from pydantic import Field, SecretStr, field_validator, model_validator

from domain.engine.control import BATCH_SIZE_MAX, BATCH_WINDOW_MS_MAX, EngineValues
from ops.setting_groups.api_keys import KeyScope, read_keys
from ops.setting_groups.models import SettingGroup
from ops.setting_groups.places import HOST, PORT

#: Least memory of a machine on which a standby of the worker waits by default, so that its 0.1 GB
#: are at most 2 % of the memory.
STANDBY_MEMORY_MIN_BYTES = 6 * 10**9
#: As browsers write the origin of a page: no path, no wildcard.
ORIGIN_PATTERN = r"^[a-z][a-z0-9+.-]*://[A-Za-z0-9.\[\]:_-]+$"


class ServerSettings(SettingGroup):
    """The public socket and what may come through it."""

    host: str = Field(default=HOST, description="address to listen on")
    port: int = Field(default=PORT, ge=0, le=65535, description="0 picks a free port")
    drain_s: float = Field(default=10.0, ge=0, description="for open answers after SIGTERM")
    allow_remote: bool = Field(
        default=False, description="other machines may come in; needs a key as well"
    )
    api_keys: tuple[SecretStr, ...] = Field(
        default=(),
        max_length=1000,
        description="KEY, NAME=KEY or NAME=sha256:HEX; with one, every request needs one",
    )
    key_scopes: Mapping[str, KeyScope] = Field(
        default_factory=dict,
        description="admin, own or read by the key's name; default: own, an only key: admin",
    )
    allowed_hosts: tuple[str, ...] = Field(
        default=(), description="names under which clients reach us, beside localhost and host"
    )
    cors_origins: tuple[Annotated[str, Field(pattern=ORIGIN_PATTERN)], ...] = Field(
        default=(), description="web pages that may use us: https://example.com, with the port"
    )
    requests_per_minute: int | None = Field(
        default=None, ge=1, le=1_000_000, description="of one key; also the largest burst"
    )
    key_jobs_at_once: int | None = Field(
        default=None, ge=1, le=1_000_000, description="of one key, queued and running"
    )
    agent_requests_per_minute: int | None = Field(
        default=None, ge=1, le=1_000_000, description="generations that one agent asks for"
    )
    agent_jobs_at_once: int | None = Field(
        default=None, ge=1, le=1000, description="of one agent, queued and running"
    )

    @field_validator("api_keys")
    @classmethod
    def _are_keys(cls, keys: tuple[SecretStr, ...]) -> tuple[SecretStr, ...]:
        read_keys(key.get_secret_value() for key in keys)
        return keys

    @model_validator(mode="after")
    def _scopes_are_of_keys(self) -> Self:
        names = {key.name for key in read_keys(key.get_secret_value() for key in self.api_keys)}
        if names and (unknown := sorted(self.key_scopes.keys() - names)):
            msg = f"key_scopes names {unknown[0]!r}, which is no key of api_keys"
            raise ValueError(msg)
        return self


class RedisSettings(SettingGroup):
    """The broker. Without a URL a private one is started."""

    url: str | None = Field(
        default=None,
        description="default: a private broker, redis-server if it is on the PATH, else Valkey",
    )
    prefix: str = Field(default="semantic", description="of all keys and channels")


class LogSettings(SettingGroup):
    """The event log and the processes' own logging."""

    url: str | None = Field(
        default=None,
        pattern=r"^(sqlite:///|postgresql(\+psycopg)?://)",
        description="sqlite:///FILE or postgresql://…; default: SQLite in the data directory",
    )
    level: str = Field(default="INFO", description="least level that is written")
    format: str = Field(default="auto", pattern="^(auto|console|json)$", description="of stderr")


class EngineSettings(SettingGroup):
    """The batch."""

    max_batch_size: int = Field(default=8, ge=1, le=BATCH_SIZE_MAX, description="jobs at once")
    kv_budget_mb: int | None = Field(
        default=None,
        ge=1,
        description="2^20 bytes for all contexts, those that run and those kept to start from;"
        " never exceeded, and the model's context is lowered to what fits; default: what the"
        " weights and a step leave of the device's memory, measured at the start",
    )
    speculation: bool = Field(
        default=True,
        description="draft tokens that repeat the prompt or the answer; the text stays the same",
    )
    step_limit_s: float = Field(
        default=60.0,
        ge=0,
        le=3600,
        description="a worker is replaced whose step takes longer than this and than 20 times what"
        " its size took before, counted without the sleep of the machine, or that gives no sign of"
        " life for a quarter of it, at least 15 s; 0: never",
    )
    batch_window_ms: float = Field(
        default=2.0,
        ge=0,
        le=BATCH_WINDOW_MS_MAX,
        description="how long requests that come together wait for more; a lone one never does",
    )

    @property
    def values(self) -> EngineValues:
        """The values that operators may change while the engine runs."""
        return EngineValues(
            batch_window_ms=self.batch_window_ms,
            max_batch_size=self.max_batch_size,
        )

    @property
    def kv_budget_bytes(self) -> int | None:
        """What all contexts may take; ``None`` for what is measured."""
        return None if self.kv_budget_mb is None else self.kv_budget_mb * 2**20


class CacheSettings(SettingGroup):
    """Where contexts outlive the worker."""

    dir: Path | None = Field(default=None, description="default: in the data directory")
    disk_budget_gb: float = Field(
        default=20.0,
        ge=0,
        description="10^9 bytes; never exceeded; 0: contexts stay in memory only",
    )
    storage: Literal["exact", "int8"] = Field(
        default="exact",
        description="int8: keys and values of contexts that nothing uses are in 8 bits, about half"
        " the size: on the disk, and in memory where it is short; answers that start from them may"
        " differ",
    )
    share_between_keys: bool = Field(
        default=False,
        description="prompts of all API keys share whole cached blocks; counts reveal those",
    )

    @property
    def disk_budget_bytes(self) -> int:
        """Most bytes of block files."""
        return int(self.disk_budget_gb * 1e9)


class JobSettings(SettingGroup):
    """The queue, and the standby of its worker."""

    max_tokens_default: int = Field(default=4096, ge=1, description="of a request without it")
    queue_limit: int = Field(default=1000, ge=1, description="interactive jobs that may wait")
    worker_standby: bool | None = Field(
        default=None,
        description="a second worker process has its imports and waits, so that a worker that dies"
        " is replaced within a second; takes 0.1 GB; default: from 6 GB of memory on",
    )

    @property
    def keeps_standby(self) -> bool:
        """Whether a standby of the worker waits."""
        if self.worker_standby is None:
            return psutil.virtual_memory().total >= STANDBY_MEMORY_MIN_BYTES
        return self.worker_standby


class MetricsSettings(SettingGroup):
    """What ``/metrics`` shows."""

    agents_max: int = Field(
        default=0,
        ge=0,
        le=1000,
        description="agents with samples of their own, those that were seen first; later ones"
        " count as other; 0: agents have no samples of their own",
    )
    vllm_names: bool = Field(
        default=False, description="repeat metrics that vLLM has too under their vllm: names"
    )


class WebhookSettings(SettingGroup):
    """Webhooks on the ends of jobs and batches."""

    urls: tuple[str, ...] = Field(default=(), description="receivers of every end")
    secret: SecretStr | None = Field(
        default=None,
        description="whsec_ and base64; several, with spaces between them, while one is replaced;"
        " default: drawn once, in the data directory",
    )
    from_requests: bool = Field(default=True, description="a request may name a webhook of its own")
    allow_hosts: tuple[str, ...] = Field(
        default=(),
        description="host or host:port that may be this machine or in a private network",
    )


class RetentionSettings(SettingGroup):
    """What is erased although its owner did not delete it; nothing by default."""

    text_days: Annotated[float, Field(gt=0)] | None = Field(
        default=None,
        description="requests and answers of jobs and batches that ended longer ago, and files that"
        " have expired, are erased",
    )
    text_gb: Annotated[float, Field(gt=0)] | None = Field(
        default=None,
        description="while texts take more, those of the jobs that ended first are erased",
    )
    archive_days: Annotated[float, Field(gt=0)] | None = Field(
        default=None, description="archives that were made longer ago are erased"
    )


MB: Final = 2**20
#: Contexts leave the disk below this multiple of the floor, so that they go before work is refused.
_CACHE_FACTOR: Final = 2


class DiskSettings(SettingGroup):
    """What stays free on the disk of the event log."""

    free_min_mb: int = Field(
        default=512,
        ge=0,
        le=10_000_000,
        description="2^20 bytes; below it new work is refused, and below twice as much contexts are"
        " deleted from the disk and no more are written; 0: no floor",
    )

    @property
    def cache_min_bytes(self) -> int:
        """Free space below which contexts are deleted from the disk."""
        return _CACHE_FACTOR * self.free_min_mb * MB


#: A module of each package of the extra ``otel``.
_NEEDED = ("opentelemetry.sdk", "opentelemetry.exporter")


class TracingSettings(SettingGroup):
    """Spans of requests and attempts, for an OpenTelemetry receiver."""

    endpoint: str | None = Field(
        default=None,
        pattern=r"^https?://",
        description="base URL of the OTLP/HTTP receiver that gets the spans, as"
        " http://localhost:4318; needs the extra otel; default: no spans",
    )
    texts: bool = Field(default=False, description="spans also carry prompts and answers")

    @model_validator(mode="after")
    def _have_the_extra(self) -> Self:
        if self.endpoint is not None and not all(map(_is_installed, _NEEDED)):
            message = (
                "tracing.endpoint needs the extra otel: pip install opentelemetry-sdk"
                " opentelemetry-exporter-otlp-proto-http"
            )
            raise ValueError(message)
        return self


def _is_installed(module: str) -> bool:
    try:
        return find_spec(module) is not None
    except ModuleNotFoundError:
        return False
