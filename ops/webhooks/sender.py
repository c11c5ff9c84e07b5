"""``domain.webhook.delivery.WebhookSender`` over HTTP; refuses addresses that are not public."""

from __future__ import annotations

import asyncio
import base64
import binascii
import os
import socket
from collections import Counter
from collections.abc import Callable, Collection, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from ipaddress import ip_address
from pathlib import Path
from typing import Final

import httpx
import standardwebhooks

from domain.errors import InvalidRequest, LogUnavailable
from domain.ports import Clock
from domain.values import Owner
from domain.webhook.delivery import (
    AT_ONCE,
    ERROR_CHARS_MAX,
    TIMEOUT_S,
    DeliveryResult,
    Webhook,
    answer_of_status,
)
from domain.webhook.targets import (
    Address,
    WebhookTarget,
    is_allowed,
    parse_target,
    refusal,
    refuse_literal,
    why_refused,
)
from ops.data_dir.permissions import write_once
from ops.settings.service import WebhookSettings

#: Most addresses of a name that are tried.
ADDRESSES_MAX: Final = 4
#: Longest Retry-After header that is read.
_RETRY_AFTER_CHARS_MAX: Final = 64

#: Takes host and port, returns addresses; may block; raises ``OSError`` if there are none.
Resolve = Callable[[str, int], Sequence[str]]


def resolve(host: str, port: int) -> Sequence[str]:
    """Return the addresses of a host, from the system's resolver."""
    found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    return list(dict.fromkeys(str(entry[4][0]) for entry in found))


def check_urls(urls: Sequence[str], allow_hosts: Collection[str]) -> None:
    """Check the receivers in the settings without resolving names."""
    for url in urls:
        try:
            refuse_literal(parse_target(url), allow_hosts)
        except InvalidRequest as error:
            raise InvalidRequest(f"webhooks.urls: {url}: {error.message}") from error


class HttpWebhookSender:
    """Sends webhooks on one event loop, on which ``close`` must be called.

    Args:
        secret: ``whsec_…``; several, with spaces between them, while one is replaced.
        allow_hosts: Hosts that may have any address.
        timeout_s: Limit of a whole attempt, from resolving the name to the response headers.
    """

    def __init__(
        self,
        *,
        secret: str,
        clock: Clock,
        allow_hosts: Collection[str] = (),
        timeout_s: float = TIMEOUT_S,
        user_agent: str = "semantic",
        resolver: Resolve = resolve,
    ) -> None:
        self._signers = [standardwebhooks.Webhook(one) for one in secret.split()]
        self._clock = clock
        self._allow_hosts = frozenset(allow_hosts)
        self._timeout_s = timeout_s
        self._user_agent = user_agent
        self._resolve = resolver
        # As many as tries and hanging lookups together, so that no try waits for another's lookup.
        self._resolvers = ThreadPoolExecutor(AT_ONCE, thread_name_prefix="webhook-dns")
        #: Lookups whose try has ended before them, with its owner.
        self._hanging: dict[Future[Sequence[str]], Owner | None] = {}
        # A kept connection could serve another name, for which it was not checked.
        limits = httpx.Limits(max_connections=None, max_keepalive_connections=0)
        self._client = httpx.AsyncClient(
            follow_redirects=False,
            trust_env=False,
            timeout=timeout_s,
            limits=limits,
        )

    async def close(self) -> None:
        """Close the connections."""
        await self._client.aclose()
        self._resolvers.shutdown(wait=False, cancel_futures=True)

    def hanging_lookups(self) -> Counter[Owner | None]:
        """Count the lookups that have outlived their tries, by owner; each occupies a thread."""
        self._hanging = {one: owner for one, owner in self._hanging.items() if not one.done()}
        return Counter(self._hanging.values())

    async def send(self, webhook: Webhook) -> DeliveryResult:
        """See ``WebhookSender.send``."""
        try:
            async with asyncio.timeout(self._timeout_s):
                return await self._send(webhook)
        except TimeoutError:
            return _failed(f"no answer within {self._timeout_s:g} s")

    async def _send(self, webhook: Webhook) -> DeliveryResult:
        try:
            target = parse_target(webhook.url)
            refuse_literal(target, self._allow_hosts)
        except InvalidRequest as error:
            return _failed(f"refused: {error.message}", is_final=True)
        try:
            addresses = await self._addresses(target, webhook.owner)
        except OSError as error:
            return _failed(f"{target.host} cannot be resolved: {error}")
        if not is_allowed(target, self._allow_hosts):
            # One address that is not public is enough to refuse the name.
            for address in addresses:
                if why := why_refused(address):
                    named = f"{target.host} ({address})"
                    return _failed(f"refused: {refusal(named, why)}", is_final=True)
        answer = _failed(f"{target.host} has no address")
        for address in addresses[:ADDRESSES_MAX]:
            try:
                return await self._post(webhook, target, address)
            except httpx.ConnectError as error:
                answer = _failed(f"cannot connect to {address}: {error}")
            except (httpx.HTTPError, httpx.InvalidURL, ValueError) as error:
                return _failed(f"{type(error).__name__}: {error}")
        return answer

    async def _addresses(self, target: WebhookTarget, owner: Owner | None) -> Sequence[Address]:
        if target.address is not None:
            return [target.address]
        lookup = self._resolvers.submit(self._resolve, target.host, target.port)
        try:
            found = await asyncio.wrap_future(lookup)
        except asyncio.CancelledError:
            self._hanging[lookup] = owner  # a resolver call cannot be interrupted
            raise
        return [ip_address(text) for text in found]

    async def _post(
        self, webhook: Webhook, target: WebhookTarget, address: Address
    ) -> DeliveryResult:
        # In its canonical form, so that httpx cannot parse the URL differently.
        where = f"[{address}]" if address.version == 6 else str(address)  # noqa: PLR2004 - of IP
        now = self._clock.now()
        headers = {
            "host": target.authority,
            "content-type": "application/json",
            "user-agent": self._user_agent,
            "accept-encoding": "identity",
            "webhook-id": webhook.id,
            "webhook-timestamp": str(int(now.timestamp())),
            "webhook-signature": " ".join(
                one.sign(webhook.id, now, webhook.body.decode()) for one in self._signers
            ),
        }
        if (trace := webhook.traceparent()) is not None:
            headers["traceparent"] = trace
        async with self._client.stream(
            "POST",
            f"{target.scheme}://{where}:{target.port}{target.path}",
            content=webhook.body,
            headers=headers,
            extensions={"sni_hostname": target.host},
        ) as response:
            # The status and headers decide; the body is not read.
            wait_s = _retry_after_s(response.headers.get("retry-after"), self._clock.now())
            return answer_of_status(response.status_code, wait_s)


def _failed(error: str, *, is_final: bool = False) -> DeliveryResult:
    return DeliveryResult(error=error[:ERROR_CHARS_MAX], is_final=is_final)


def _retry_after_s(value: str | None, now: datetime) -> float | None:
    """Return the seconds of a Retry-After header, which may be a date (RFC 9110, 10.2.3)."""
    if value is None or len(value) > _RETRY_AFTER_CHARS_MAX:
        return None
    if value.isascii() and value.isdigit():
        return float(value)
    with suppress(ValueError, OverflowError):
        moment = parsedate_to_datetime(value)
        if moment.tzinfo is None:
            moment = moment.replace(tzinfo=UTC)
        return max(0.0, (moment - now).total_seconds())
    return None


KEY_NAME: Final = "webhooks.key"
_PREFIX: Final = "whsec_"
_SECRET_BYTES: Final = 32
#: Bytes of a secret, as Standard Webhooks bounds them.
_BYTES_MIN: Final = 24
_BYTES_MAX: Final = 64


def webhook_secret(settings: WebhookSettings, data_dir: Path) -> str:
    """Return the secret, or several separated by spaces; generate one if there is none.

    Raises:
        LogUnavailable: The file cannot be read or written, or its content is no secret.
    """
    if settings.secret is not None:
        return _checked(settings.secret.get_secret_value(), "webhooks.secret")
    file = data_dir / KEY_NAME
    try:
        if not file.exists():
            key = base64.b64encode(os.urandom(_SECRET_BYTES)).decode()
            write_once(file, f"{_PREFIX}{key}\n")
        return _checked(file.read_text("ascii").strip(), str(file))
    except (OSError, UnicodeError) as error:
        raise LogUnavailable(f"the secret of the webhooks cannot be read: {error}") from error


def _checked(text: str, where: str) -> str:
    secrets = text.split()
    if not secrets:
        raise LogUnavailable(f"{where}: there is no webhook secret")
    if not all(map(_is_secret, secrets)):
        msg = (
            f"{where}: a webhook secret is {_PREFIX} and the base64 of {_BYTES_MIN} to"
            f" {_BYTES_MAX} bytes"
        )
        raise LogUnavailable(msg)
    return text


def _is_secret(word: str) -> bool:
    try:
        key = base64.b64decode(word.removeprefix(_PREFIX), validate=True)
    except binascii.Error:
        return False
    return word.startswith(_PREFIX) and _BYTES_MIN <= len(key) <= _BYTES_MAX
