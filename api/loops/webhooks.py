"""The thread that sends webhooks."""

from __future__ import annotations

import asyncio
import threading
from collections import Counter
from collections.abc import Awaitable, Callable
from typing import Final, Protocol

from domain.errors import SemanticError
from domain.shares import share_of
from domain.values import Owner
from domain.webhook.delivery import (
    AT_ONCE,
    ERROR_CHARS_MAX,
    TIMEOUT_S,
    DeliveryResult,
    DueHost,
    Webhook,
    WebhookSender,
    WebhookState,
)
from domain.webhook.send import WebhookCollector
from ops.observe.logs import Logger

#: Time between two reads of the log and of due webhooks, in seconds.
POLL_S: Final = 0.5
#: The same while no job has emitted anything for ``BUSY_S``, in seconds.
REST_S: Final = 2.0
BUSY_S: Final = 2.0
#: Time between two deletions of old webhooks, in seconds.
FORGET_S: Final = 600.0
#: Most hosts of one step.
HOSTS_MAX: Final = 256
#: A try without a result counts as dead this long after its timeout, in seconds.
LEASE_SPARE_S: Final = 5.0
#: How long ``close`` waits for running tries, in seconds.
CLOSE_S: Final = 3.0
#: How long it then waits for the thread, in seconds.
_JOIN_S: Final = 5.0


class ClosableSender(WebhookSender, Protocol):
    """A sender that holds connections and resolves names on threads."""

    def hanging_lookups(self) -> Counter[Owner | None]:
        """Count the lookups that have outlived their tries, by owner; each occupies a thread."""

    async def close(self) -> None:
        """End them."""


class WebhookThread:
    """Reads the log and sends due webhooks, until closed.

    Args:
        sender: Makes the sender, in the event loop of the thread.
        at_once: Most tries and hanging lookups at the same time.
    """

    def __init__(
        self,
        collector: WebhookCollector,
        sender: Callable[[], ClosableSender],
        *,
        logger: Logger,
        tries: Counter[WebhookState] | None = None,
        at_once: int = AT_ONCE,
    ) -> None:
        self._collector = collector
        self._make_sender = sender
        self._logger = logger
        self._outcomes = Counter() if tries is None else tries
        self._at_once = at_once
        #: Running tries.
        self._busy: Counter[DueHost] = Counter()
        self._tries: set[asyncio.Task[None]] = set()
        self._after: int | None = None
        self._is_failing = False
        self._busy_until = 0.0
        self._is_resting = False
        self._closed = threading.Event()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._woken: asyncio.Event | None = None
        self._thread = threading.Thread(target=self._run, name="webhooks", daemon=True)

    def start(self) -> None:
        """Start the thread; it continues the webhooks of other processes."""
        self._thread.start()

    def wake(self) -> None:
        """Start the next step at once."""
        loop, woken = self._loop, self._woken
        if loop is not None and woken is not None and not loop.is_closed():
            loop.call_soon_threadsafe(woken.set)

    def record_traffic(self) -> None:
        """Record that jobs emit items: look often, since one may end."""
        self._busy_until = self._collector.clock.monotonic() + BUSY_S
        if self._is_resting:
            self._is_resting = False
            self.wake()

    def close(self) -> None:
        """End soon; a try that is cut off is repeated later."""
        self._closed.set()
        self.wake()
        self._thread.join(CLOSE_S + _JOIN_S)

    def _run(self) -> None:
        asyncio.run(self._main())

    async def _main(self) -> None:
        self._loop, self._woken = asyncio.get_running_loop(), asyncio.Event()
        sender = self._make_sender()
        forgotten_at = -FORGET_S
        try:
            while not self._closed.is_set():
                self._woken.clear()
                await self._attempt(lambda: self._step(sender))
                if self._collector.clock.monotonic() - forgotten_at >= FORGET_S:
                    forgotten_at = self._collector.clock.monotonic()
                    await self._attempt(lambda: asyncio.to_thread(self._collector.forget))
                if not self._closed.is_set():
                    await self._pause(self._woken)
            if self._tries:
                await asyncio.wait(self._tries, timeout=CLOSE_S)
            for one in self._tries:
                one.cancel()
        finally:
            await sender.close()

    async def _pause(self, woken: asyncio.Event) -> None:
        self._is_resting = self._collector.clock.monotonic() >= self._busy_until
        try:
            async with asyncio.timeout(REST_S if self._is_resting else POLL_S):
                await woken.wait()
        except TimeoutError:
            return

    async def _attempt(self, action: Callable[[], Awaitable[object]]) -> None:
        """Run an action whose failure is logged, since it is repeated."""
        try:
            await action()
        except SemanticError as error:
            if not self._is_failing:
                self._logger.warning("webhooks_wait", error=error.code, why=error.message)
            self._is_failing = True
        except Exception:
            # A defect that one webhook reveals must not stop the others.
            if not self._is_failing:
                self._logger.exception("webhooks_failed")
            self._is_failing = True
        else:
            self._is_failing = False

    async def _step(self, sender: ClosableSender) -> None:
        """Read new events, and start due tries within the limits."""
        for due in await asyncio.to_thread(self._look):
            await self._begin(due, sender)

    def _look(self) -> tuple[DueHost, ...]:
        """Store the webhooks of new events, and return the hosts with a due try; may block."""
        after = self._collector.store.position() if self._after is None else self._after
        while (read := self._collector.collect(after=after)) != after:
            self._after = after = read
            if self._closed.is_set():
                break
        self._after = after
        return self._collector.due_hosts(limit=HOSTS_MAX)

    async def _begin(self, due: DueHost, sender: ClosableSender) -> None:
        room = self._room(due, sender.hanging_lookups())
        if room <= 0 or self._closed.is_set():
            return
        claimed = await asyncio.to_thread(
            self._collector.claim,
            due,
            lease_s=TIMEOUT_S + LEASE_SPARE_S,
            limit=room,
        )
        for webhook in claimed:
            self._busy[due] += 1
            task = asyncio.create_task(self._deliver(webhook, due, sender))
            self._tries.add(task)
            task.add_done_callback(self._tries.discard)

    def _room(self, due: DueHost, hanging: Counter[Owner | None]) -> int:
        """Return how many tries may begin: a host has its share of the share of its API key.

        URLs of the settings, and all URLs of an installation without keys, share all places.
        """
        most, taken = self._at_once, self._busy.total() + hanging.total()
        if due.owner is not None:
            tries = sum(count for one, count in self._busy.items() if one.owner == due.owner)
            most = share_of(most, others=taken - tries - hanging[due.owner])
            taken = tries + hanging[due.owner]
        here = self._busy[due]
        return share_of(most, others=taken - here) - here

    async def _deliver(self, webhook: Webhook, due: DueHost, sender: WebhookSender) -> None:
        try:
            answer = await self._send(webhook, sender)
            await self._attempt(lambda: self._settle(webhook, answer))
        finally:
            self._busy -= Counter([due])  # forgets a host without tries
            if self._woken is not None:
                self._woken.set()  # the host has room for another try

    async def _send(self, webhook: Webhook, sender: WebhookSender) -> DeliveryResult:
        try:
            return await sender.send(webhook)
        except Exception as error:
            # A defect counts as a failed try, so that the tries end.
            self._logger.exception("webhook_not_sent", webhook=webhook.id)
            return DeliveryResult(error=f"internal: {error!r}"[:ERROR_CHARS_MAX])

    async def _settle(self, webhook: Webhook, answer: DeliveryResult) -> None:
        state = await asyncio.to_thread(self._collector.settle, webhook, answer)
        self._outcomes[state] += 1
        if answer.error is not None:
            self._logger.warning(
                "webhook_failed",
                webhook=webhook.id,
                subject=webhook.subject,
                host=webhook.host,
                attempt=webhook.attempts,
                state=state.value,
                error=answer.error,
            )
