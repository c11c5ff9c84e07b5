"""A request that becomes a job: its event, and the texts that the event names by digest."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final

from domain.chat.request import ChatRequest
from domain.events.job import EmbeddingRequested, JobSubmitted
from domain.values import Digest, Owner, digest_of

#: Stands for the digest of a request until ``NewJob.sealed``: the request may still change.
UNSEALED: Final = Digest("")


@dataclass(frozen=True, slots=True, kw_only=True)
class NewJob:
    """A job that is not recorded yet.

    Attributes:
        submitted: Its event; ``sealed`` sets what follows from the texts.
        request: What to generate; the seed is already drawn.
        correlation_id: The id that the caller finds in ``request-id``.
        client: The caller's User-Agent.
        wire: The request in the form of its dialect, for protocols that return it with the answer.
        keyspace: Only requests with the same one repeat each other; empty if all clients share it.
    """

    submitted: JobSubmitted
    request: ChatRequest
    correlation_id: str
    client: str | None = None
    wire: bytes | None = None
    keyspace: str = ""

    @property
    def answers_to(self) -> Owner | None:
        """Whose answers the prompt may echo; ``None`` for those to all clients."""
        return self.submitted.owner if self.keyspace else None

    @property
    def embedding(self) -> EmbeddingRequested | None:
        """The event that follows if the job computes vectors."""
        inputs = self.request.embedding
        if inputs is None:
            return None
        return EmbeddingRequested(texts=len(inputs.texts), dimensions=inputs.dimensions)

    def sealed(self) -> tuple[JobSubmitted, dict[Digest, bytes]]:
        """Return the event and the texts that it names, by digest."""
        payload = self.request.to_bytes()
        client = None if self.client is None else text_bytes(self.client)
        texts = (payload, self.wire, client)
        submitted = replace(
            self.submitted,
            model=self.request.model,
            request=digest_of(payload),
            sampling=self.request.sampling,
            max_tokens=self.request.max_tokens,
            client_name=None if client is None else digest_of(client),
            wire=None if self.wire is None else digest_of(self.wire),
        )
        return submitted, {digest_of(text): text for text in texts if text is not None}


def text_bytes(text: str) -> bytes:
    """Return a short text of a client as the payload that keeps it."""
    return text.encode("utf-8", "surrogatepass")
