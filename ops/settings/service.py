"""Settings of the service: its socket, queue, engine, cache, disk, logs, spans and webhooks."""

from __future__ import annotations

from collections.abc import Mapping
from importlib.util import find_spec
from ipaddress import ip_address
from pathlib import Path
from typing import Annotated, Final, Self

import psutil
from pydantic import Field, SecretStr, field_validator, model_validator

from domain.engine.control import BATCH_SIZE_MAX, BATCH_WINDOW_MS_MAX, EngineValues
from domain.kv.spec import PACKED_BITS
from ops.settings.api_keys import KeyScope, read_keys
from ops.settings.models import SettingGroup
from ops.settings.places import HOST, PORT

#: Least memory of a machine on which a standby of the worker waits by default, so that its 0.1 GB
#: are at most 2 % of the memory.
STANDBY_MEMORY_MIN_BYTES = 6 * 10**9
#: As browsers write the origin of a page: no path, no wildcard.
ORIGIN_PATTERN = r"^[a-z][a-z0-9+.-]*://[A-Za-z0-9.\[\]:_-]+$"


class ServerSettings(SettingGroup):
    """The public socket and what may come through it."""

    host: str = HOST
    """The service listens on this address."""
    port: int = Field(default=PORT, ge=0, le=65535)
    """The service listens on this port; 0 picks a free one."""
    drain_s: float = Field(default=10.0, ge=0)
    """Open answers have this many seconds after SIGTERM."""
    allow_remote: bool = False
    """Other machines may come in; that needs a key as well."""
    api_keys: tuple[SecretStr, ...] = Field(default=(), max_length=1000)
    """Each key is KEY, NAME=KEY or NAME=sha256:HEX; with one, every request needs one."""
    key_scopes: Mapping[str, KeyScope] = Field(default_factory=dict)
    """The key of each name has the scope admin, own or read; by default it is own, and admin for an
    only key."""
    allowed_hosts: tuple[str, ...] = ()
    """Clients reach us under these names, beside localhost and host."""
    cors_origins: tuple[Annotated[str, Field(pattern=ORIGIN_PATTERN)], ...] = ()
    """These web pages may use us; each is written as https://example.com, with its port."""
    requests_per_minute: int | None = Field(default=None, ge=1, le=1_000_000)
    """One key may send this many requests a minute; it is also the largest burst."""
    key_jobs_at_once: int | None = Field(default=None, ge=1, le=1_000_000)
    """One key may have this many jobs at once, queued and running."""
    agent_requests_per_minute: int | None = Field(default=None, ge=1, le=1_000_000)
    """One agent may ask for this many generations a minute."""
    agent_jobs_at_once: int | None = Field(default=None, ge=1, le=1000)
    """One agent may have this many jobs at once, queued and running."""

    @field_validator("api_keys")
    @classmethod
    def _are_keys(cls, keys: tuple[SecretStr, ...]) -> tuple[SecretStr, ...]:
        read_keys(key.get_secret_value() for key in keys)
        return keys

    @model_validator(mode="after")
    def _scopes_are_of_keys(self) -> Self:
        names = {key.name for key in read_keys(key.get_secret_value() for key in self.api_keys)}
        if names and (unknown := sorted(self.key_scopes.keys() - names)):
            raise ValueError(f"key_scopes names {unknown[0]!r}, which is no key of api_keys")
        return self

    def why_not_listen(self, address: str) -> str | None:
        """Return in one line why a numeric address of ``host`` is forbidden, else ``None``.

        Beyond this machine it takes a permission and a key.
        """
        # A zone ("fe80::1%eth0") does not limit which machines reach the address.
        if ip_address(address.partition("%")[0]).is_loopback:
            return None
        missing = []
        if not self.allow_remote:
            missing.append("--allow-remote (server.allow_remote)")
        if not self.api_keys:
            missing.append("a key (SEMANTIC_SERVER__API_KEYS)")
        if not missing:
            return None
        return (
            f"{self.host} can be reached from other machines; to listen there it takes"
            f" {' and '.join(missing)}, or stay with 127.0.0.1"
        )


class RedisSettings(SettingGroup):
    """The broker. Without a URL a private one is started."""

    url: str | None = None
    """The broker answers at this URL; by default a private one starts, redis-server if it is on the
    PATH, else Valkey."""
    prefix: str = "semantic"
    """All keys and channels begin with this name."""


class LogSettings(SettingGroup):
    """The event log and the processes' own logging."""

    url: str | None = Field(default=None, pattern=r"^(sqlite:///|postgresql(\+psycopg)?://)")
    """The database is sqlite:///FILE or postgresql://…; by default it is SQLite in the data
    directory."""
    level: str = "INFO"
    """Messages below this level are not written."""
    format: str = Field(default="auto", pattern="^(auto|console|json)$")
    """The lines on stderr have this form."""


class EngineSettings(SettingGroup):
    """The batch."""

    max_batch_size: int = Field(default=8, ge=1, le=BATCH_SIZE_MAX)
    """This many jobs run at once."""
    kv_budget_mb: int | None = Field(default=None, ge=1)
    """All contexts take at most this many units of 2^20 bytes, those that run and those kept to
    start from; it is never exceeded, and the model's context is lowered to what fits. By default it
    is what the weights and a step leave of the device's memory, measured at the start."""
    speculation: bool = True
    """Tokens are drafted that repeat the prompt or the answer; the text stays the same."""
    step_limit_s: float = Field(default=60.0, ge=0, le=3600)
    """A worker is replaced whose step takes longer than this and than 20 times what its size took
    before, counted without the sleep of the machine, or that gives no sign of life for a quarter of
    it, at least 15 s; 0 switches this off."""
    batch_window_ms: float = Field(default=2.0, ge=0, le=BATCH_WINDOW_MS_MAX)
    """Requests that come together wait this long for more; a lone one never does."""

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

    dir: Path | None = None
    """Contexts lie in this directory; by default it is in the data directory."""
    disk_budget_gb: float = Field(default=20.0, ge=0)
    """Contexts take at most this many units of 10^9 bytes on the disk, which is never exceeded;
    with 0 they stay in memory only."""
    kv_bits: int = Field(default=0, ge=0, le=PACKED_BITS, multiple_of=PACKED_BITS)
    """With 8, keys and values of all tokens are in 8 bits, about half the size, in memory and on
    the disk, and answers differ a little; with 0 they are as the model computes them."""
    share_between_keys: bool = False
    """Prompts of all API keys share whole cached blocks; counts reveal those."""

    @property
    def disk_budget_bytes(self) -> int:
        """Most bytes of block files."""
        return int(self.disk_budget_gb * 1e9)


class JobSettings(SettingGroup):
    """The queue, and the standby of its worker."""

    max_tokens_default: int = Field(default=4096, ge=1)
    """The answer to a request that names no limit has at most this many tokens."""
    queue_limit: int = Field(default=1000, ge=1)
    """This many interactive jobs may wait."""
    worker_standby: bool | None = None
    """A second worker process has its imports and waits, so that a worker that dies is replaced
    within a second; it takes 0.1 GB. By default it waits from 6 GB of memory on."""

    @property
    def keeps_standby(self) -> bool:
        """Whether a standby of the worker waits."""
        if self.worker_standby is None:
            return psutil.virtual_memory().total >= STANDBY_MEMORY_MIN_BYTES
        return self.worker_standby


class MetricsSettings(SettingGroup):
    """What ``/metrics`` shows."""

    agents_max: int = Field(default=0, ge=0, le=1000)
    """This many agents have samples of their own, those that were seen first, and later ones count
    as other; with 0 no agent has."""
    vllm_names: bool = False
    """Metrics that vLLM has too are repeated under their vllm: names."""


class WebhookSettings(SettingGroup):
    """Webhooks on the ends of jobs and batches."""

    urls: tuple[str, ...] = ()
    """These receivers get every end."""
    secret: SecretStr | None = None
    """The secret is whsec_ and base64; several stand with spaces between them while one is
    replaced. By default it is drawn once and kept in the data directory."""
    from_requests: bool = True
    """A request may name a webhook of its own."""
    allow_hosts: tuple[str, ...] = ()
    """These hosts, each as host or host:port, may be this machine or in a private network."""


class RetentionSettings(SettingGroup):
    """What is erased although its owner did not delete it; nothing by default."""

    text_days: Annotated[float, Field(gt=0)] | None = None
    """Requests and answers of jobs and batches that ended longer ago, and files that have expired,
    are erased."""
    text_gb: Annotated[float, Field(gt=0)] | None = None
    """While texts take more, those of the jobs that ended first are erased."""
    archive_days: Annotated[float, Field(gt=0)] | None = None
    """Archives that were made longer ago are erased."""

    @property
    def is_on(self) -> bool:
        """Whether any rule is set."""
        return any(rule is not None for rule in (self.text_days, self.text_gb, self.archive_days))


MB: Final = 2**20
#: Contexts leave the disk below this multiple of the floor, so that they go before work is refused.
_CACHE_FACTOR: Final = 2


class DiskSettings(SettingGroup):
    """What stays free on the disk of the event log."""

    free_min_mb: int = Field(default=512, ge=0, le=10_000_000)
    """Below this many units of 2^20 bytes new work is refused, and below twice as much contexts are
    deleted from the disk and no more are written; with 0 there is no floor."""

    @property
    def cache_min_bytes(self) -> int:
        """Free space below which contexts are deleted from the disk."""
        return _CACHE_FACTOR * self.free_min_mb * MB


#: A module of each package of the extra ``otel``.
_NEEDED = ("opentelemetry.sdk", "opentelemetry.exporter")


class TracingSettings(SettingGroup):
    """Spans of requests and attempts, for an OpenTelemetry receiver."""

    endpoint: str | None = Field(default=None, pattern=r"^https?://")
    """The OTLP/HTTP receiver at this base URL gets the spans, as http://localhost:4318; it needs
    the extra otel. By default there are no spans."""
    texts: bool = False
    """Spans also carry prompts and answers."""

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
