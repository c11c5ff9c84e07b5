"""Reads the request of a job and prepares its prompt."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace
from functools import partial
from typing import TypeAlias

from domain.chat.generation import Claim, PreparedPrompt
from domain.chat.ports import InferenceEngine
from domain.chat.request import ChatRequest
from domain.events.job import AttemptStarted
from domain.log.ports import PayloadStore
from domain.values import Digest, Owner

#: Yields what a function reads, for the length of a ``with`` block.
HoldRequest: TypeAlias = Callable[[Callable[[], bytes]], AbstractContextManager[bytes]]


class Preparation:
    """A preparation that can be cancelled; it looks now and then whether it was."""

    def __init__(self) -> None:
        self._cancelled = False

    def cancel(self) -> None:
        """Request the end."""
        self._cancelled = True

    def claim(self, owner: Owner | None) -> Claim:
        """Return the claim of the prompt that is prepared for a key."""
        return Claim(owner=owner, is_cancelled=lambda: self._cancelled)


@contextmanager
def hold_at_once(read: Callable[[], bytes]) -> Iterator[bytes]:
    """Yield what the function reads, however much is held already."""
    yield read()


def prepare_prompt(
    digest: Digest,
    before: AttemptStarted | None,
    *,
    cache_owner: Owner | None,
    claim: Claim,
    payloads: PayloadStore,
    engine: InferenceEngine,
    hold: HoldRequest,
) -> tuple[ChatRequest, PreparedPrompt]:
    """Return the request and its prompt.

    Args:
        digest: Digest of the request.
        before: The attempt whose answer is continued; its prompt is made again.
        cache_owner: As in ``JobSubmitted``.
        claim: Whose prompt it is.
        payloads: Stores the request.
        engine: Renders the prompt.
        hold: Reads the payload as soon as there is room for what is made of it.

    Raises:
        PayloadMissing: The request is gone.
        PayloadDamaged: The request is not as it was accepted.
        InvalidRequest: The model cannot read the request.
        GenerationCancelled: The job was cancelled meanwhile.
    """
    with hold(partial(payloads.get, digest)) as payload:
        request = ChatRequest.from_bytes(payload)
        if before is None:
            return request, engine.prepare(request, cache_owner=cache_owner, claim=claim)
        prompt = engine.prepare(request, before.encoding, cache_owner, claim)
    # The limit depends on free memory.
    return request, replace(prompt, thinking_limit=before.thinking_limit)
