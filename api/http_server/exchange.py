"""One request and its answer, from the last byte of the body to the last byte sent."""

from __future__ import annotations

import asyncio
import hmac

from api.http.messages import Dialect, Reply, Request, StreamReply


class Exchange:
    """What the gate and the handler share about one request.

    Args:
        request: As the gate read it, without the values of the route's pattern.
        route_path: The path in the one spelling that the framework routes on.
        dialect: Whose errors the caller understands, as far as path and headers tell.
    """

    __slots__ = ("_answer", "claimed", "dialect", "request", "route_path")

    def __init__(self, request: Request, *, route_path: str, dialect: Dialect) -> None:
        self.request = request
        self.route_path = route_path
        self.dialect = dialect
        #: A handler has taken the request, so the answer comes from it and from nowhere else.
        self.claimed = False
        self._answer: asyncio.Future[Reply | StreamReply | None] = (
            asyncio.get_running_loop().create_future()
        )

    def answer(self, reply: Reply | StreamReply | None) -> None:
        """Hand the answer to the gate; ``None`` says that no route wants the request.

        Later answers are dropped: only the first one can be on the wire.
        """
        if not self._answer.done():
            self._answer.set_result(reply)

    def fail(self, error: Exception) -> None:
        """Tell the gate that no answer will come."""
        if not self._answer.done():
            self._answer.set_exception(error)

    async def answered(self) -> Reply | StreamReply | None:
        """Wait for the answer."""
        return await self._answer


class Exchanges:
    """The exchanges in hand, by request id; one per client connection at most.

    Args:
        secret: Known to this process only; shows that a request behind came through the gate.
    """

    def __init__(self, secret: str) -> None:
        self.secret = secret
        self._open: dict[str, Exchange] = {}
        self._ending = False

    def __len__(self) -> int:
        return len(self._open)

    def begin(self, exchange: Exchange) -> None:
        """Make an exchange findable."""
        self._open[exchange.request.id] = exchange
        if self._ending:
            exchange.request.ending.set()

    def end(self, exchange: Exchange) -> None:
        """Forget an exchange."""
        self._open.pop(exchange.request.id, None)

    def claim(self, request_id: str | None, secret: str | None) -> Exchange | None:
        """Give an exchange to the handler that asks for it, once.

        Returns:
            ``None`` where the secret is wrong or nobody waits for the answer.
        """
        if not hmac.compare_digest((secret or "").encode(), self.secret.encode()):
            return None
        exchange = self._open.get(request_id or "")
        if exchange is None or exchange.claimed:
            return None
        exchange.claimed = True
        return exchange

    def end_streams(self) -> None:
        """Ask every open answer, and each that begins later, to come to its end now."""
        self._ending = True
        for exchange in self._open.values():
            exchange.request.ending.set()
