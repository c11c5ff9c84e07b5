"""A request that is parsed and not accepted yet, and the digest by which its repeats find it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from api.protocols.shared.parsed_request import ParsedRequest
from domain.job.new_job import NewJob
from domain.job.request_dedup import RequestRepeat
from domain.job.state import Job
from domain.usecases.jobs.submit import Accepted
from domain.values import Digest, digest_of


@dataclass(frozen=True, slots=True, kw_only=True)
class PreparedRequest:
    """A parsed request and the earlier jobs that it may repeat.

    Attributes:
        repeat: Whether the request may join an earlier job.
        alike: Jobs with the same digest, newest first.
        accepted: The job, once one is recorded.
    """

    parsed: ParsedRequest
    command: NewJob
    repeat: RequestRepeat
    alike: Sequence[Job] = ()
    accepted: Accepted | None = None


def asked_of(command: NewJob, *, seeded: bool) -> Digest:
    """Return a digest that is equal for requests with the same question and answer format."""
    agent = command.submitted.agent
    asked = command.request.asked(protocol=command.submitted.protocol, agent=agent, seeded=seeded)
    if command.submitted.webhook is not None:
        # A request with a webhook must not join a job that notifies another receiver, or none.
        asked = digest_of(f"{asked}\n{command.submitted.webhook}".encode())
    if command.wire is not None:
        # The answer shows parts of its request, so these must be equal too.
        asked = digest_of(f"{asked}\n".encode() + command.wire)
    if command.keyspace:
        asked = digest_of(f"{asked}\nkey {command.keyspace}".encode())
    return asked


def asking(command: NewJob, asked: Digest) -> NewJob:
    """Return the job of a request with the digest by which its repeats find it."""
    return replace(command, submitted=replace(command.submitted, asked=asked))
