"""Errors that a client or an operator can act on; each has a code."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final


class SemanticError(Exception):
    """Root of the tree; ``code`` is the stable machine name of the class, in snake case."""

    code = "internal_error"
    #: Whether the same request may succeed later without a change by the caller.
    retryable = False

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        if "code" not in vars(cls):
            cls.code = re.sub(r"(?<=.)(?=[A-Z])", "_", cls.__name__).lower()

    @property
    def message(self) -> str:
        """The sentence shown to the caller."""
        return str(self.args[0]) if self.args else self.code


class InvalidRequest(SemanticError):
    """The request cannot be accepted as it is.

    Args:
        field: Dotted path of the offending field, if there is one.
    """

    def __init__(self, message: str, *, field: str | None = None) -> None:
        super().__init__(message)
        self.field = field


class PromptTooLong(InvalidRequest):
    """The prompt does not fit the model's context."""

    def __init__(self, tokens: int, maximum: int) -> None:
        super().__init__(f"prompt is too long: {tokens} tokens > {maximum} maximum")
        self.tokens = tokens
        self.maximum = maximum


class NotFound(SemanticError):
    """Something named by the caller does not exist."""


class Unknown(NotFound):
    """An object of a kind that has no such name; the class is named ``<Kind>NotFound``."""

    def __init__(self, name: str) -> None:
        kind = type(self).__name__.removesuffix("NotFound")
        super().__init__(f"{kind.lower()} {name} does not exist")


class Conflict(SemanticError):
    """The request contradicts the present state."""


class ConcurrencyConflict(Conflict):
    """The stream is not at the version that the writer expected."""

    def __init__(self, stream: str, *, expected: int, actual: int) -> None:
        super().__init__(f"{stream} is at version {actual}, expected {expected}")
        self.stream = stream
        self.expected = expected
        self.actual = actual


class StaleAttempt(Conflict):
    """An attempt spoke after a newer one had begun, or after the job had ended."""

    def __init__(self, job_id: str, *, attempt: int, current: int) -> None:
        super().__init__(f"attempt {attempt} of job {job_id} is over; attempt {current} speaks")


class JobAlreadyTerminal(Conflict):
    """The job has ended and cannot be changed."""

    def __init__(self, job_id: str, status: str) -> None:
        super().__init__(f"job {job_id} is already {status}")
        self.status = status


class NotRetryable(Conflict):
    """Only a job that ended without an answer can be tried again."""

    def __init__(self, job_id: str, status: str, *, why: str | None = None) -> None:
        reason = "only failed, cancelled and expired ones retry" if why is None else why
        super().__init__(f"job {job_id} is {status}; {reason}")


class NotForkable(Conflict):
    """Only an answer whose tokens are known can be continued in another job."""

    def __init__(self, job_id: str, why: str) -> None:
        super().__init__(f"job {job_id} cannot be forked: {why}")


class ModelNotLoaded(Conflict):
    """The request belongs to a registered model, and another one is loaded.

    Args:
        loaded: The model that is loaded, if there is one.
    """

    def __init__(self, model: str, *, loaded: str | None) -> None:
        present = f"{loaded} is" if loaded else "no model is"
        super().__init__(
            f"model {model} is not loaded ({present}); load it with: semantic models swap {model}"
        )


class ModelUnusable(Conflict):
    """The model of the request is registered, and cannot be used here."""


class IdempotencyKeyTaken(Conflict):
    """A job of this idempotency key was accepted before."""

    def __init__(self, job_id: str) -> None:
        super().__init__(f"the idempotency key belongs to job {job_id}")
        self.job_id = job_id


class UniqueJobExists(Conflict):
    """An open or completed job is what the new one would be, and its time is not over."""

    def __init__(self, job_id: str) -> None:
        super().__init__(f"job {job_id} is the only one of its kind for a while")
        self.job_id = job_id


class IdempotencyKeyReused(Conflict):
    """A caller sent an idempotency key again with another request."""

    def __init__(self, job_id: str) -> None:
        super().__init__(
            f"this idempotency key was used for job {job_id} with another request; use a new key"
        )


class AgentExists(Conflict):
    """The name belongs to an agent that was registered with something else."""

    def __init__(self, agent: str) -> None:
        super().__init__(
            f"agent {agent} exists already, with another key, system prompt or options"
        )


class AgentTurnConflict(Conflict):
    """The history of an agent is not where the caller thinks it is, or a turn of it is open.

    Args:
        turn: How many turns it has.
        job: The job of the turn that is open, if one is.
    """

    def __init__(self, agent: str, *, turn: int, job: str | None) -> None:
        goes_on = f"; {job} is still answering the next one" if job else ""
        super().__init__(f"agent {agent} has {turn} turns{goes_on}")
        self.turn = turn
        self.job = job


class BatchNotEnded(Conflict):
    """What was asked of a batch must wait until it has ended."""

    def __init__(self, batch_id: str, state: str) -> None:
        super().__init__(f"batch {batch_id} is {state}; this needs one that has ended")


class BatchAlreadyEnded(Conflict):
    """The batch has ended and cannot be cancelled."""

    def __init__(self, batch_id: str, state: str) -> None:
        super().__init__(f"batch {batch_id} is {state} and cannot be cancelled")


class Overloaded(SemanticError):
    """A named limit is reached.

    Args:
        message: Which limit, and its value.
        retry_after_s: When a new try is sensible, in seconds.
    """

    retryable = True

    def __init__(self, message: str, *, retry_after_s: int = 1) -> None:
        super().__init__(message)
        self.retry_after_s = retry_after_s


class MemoryFull(Overloaded):
    """Running contexts take all memory for contexts, and a job has waited long for some."""

    def __init__(self, waited_s: float, *, retry_after_s: int) -> None:
        message = f"the memory is full: a job has waited for it for {waited_s:.0f} s"
        super().__init__(message, retry_after_s=retry_after_s)


class RateLimited(Overloaded):
    """One caller asks for more than its share."""


class Unavailable(SemanticError):
    """A part of the service is not there just now."""

    retryable = True


class LogUnavailable(Unavailable):
    """The event log cannot be written (disk full, locked, gone)."""


class LogNewer(LogUnavailable, ValueError):
    """A newer program wrote to the event log what this one cannot read.

    Tables from before the first release are refused so too: their schemas are as unknown.
    A ``ValueError`` too, since it is about a value of the log that cannot be decoded.
    """

    retryable = False


class DiskFull(LogUnavailable):
    """The disk of the log is short of space: new work is refused until some is free.

    Args:
        message: What is missing, and what frees some.
    """

    def __init__(self, message: str, *, retry_after_s: int = 10) -> None:
        super().__init__(message)
        self.retry_after_s = retry_after_s


class QueueUnavailable(Unavailable):
    """The broker cannot be reached."""


class ModelNotReady(Unavailable):
    """No worker with a loaded model is alive."""


class ModelChanged(Unavailable):
    """The model of a half-read answer left; a new request is answered by the present one."""

    def __init__(self, message: str = "") -> None:
        super().__init__(message or "the model of this answer left; send the request again")


class Draining(Unavailable):
    """The process is shutting down."""


class Failure(SemanticError):
    """Something of ours went wrong with this request."""


class EngineFailure(Failure):
    """The generation could not be finished."""


class DeviceFailed(EngineFailure):
    """The GPU failed or ran out of memory; the worker restarts and continues its jobs."""

    retryable = True


class EngineLost(EngineFailure):
    """The engine stopped while the generation ran; the next worker continues it."""

    retryable = True


class GenerationCancelled(Failure):
    """The generation was cancelled."""

    code = "cancelled"


class ItemsLost(Failure):
    """A stream cannot be resumed where its reader left; the log has the complete answer."""

    def __init__(self, job_id: str, *, after: int) -> None:
        super().__init__(
            f"what came after item {after} is kept no more as a stream; "
            f"the whole answer is at /v1/jobs/{job_id}"
        )


class PayloadDamaged(Failure):
    """A stored text does not have the content that its digest names."""

    def __init__(self, digest: str) -> None:
        super().__init__(f"the stored text {digest} is not as it was written")


class CorruptLog(Failure):
    """The hash chain is broken at ``position``."""

    def __init__(self, position: int, reason: str) -> None:
        super().__init__(f"event log does not verify at position {position}: {reason}")
        self.position = position


#: Names that a message lists.
NAMES_MAX = 20
#: Characters of an unknown name that the message repeats.
NAME_CHARS_MAX = 200


class JobNotFound(Unknown):
    """There is no job of that id."""


class ResponseNotFound(Unknown):
    """There is no response of that id, or it was deleted, or was not to be stored."""


class PreviousResponseNotFound(InvalidRequest):
    """A request goes on from a response that is not there."""

    def __init__(self, response_id: str) -> None:
        super().__init__(
            f"previous response {response_id} does not exist", field="previous_response_id"
        )


class ModelNotFound(NotFound):
    """No model of that name is served.

    Args:
        known: Names that exist.
    """

    def __init__(self, model: str, *, known: tuple[str, ...] = ()) -> None:
        further = len(known) - NAMES_MAX
        more = f" and {further} more" if further > 0 else ""
        names = f"; there is: {', '.join(known[:NAMES_MAX])}{more}" if known else ""
        shown = model if len(model) <= NAME_CHARS_MAX else f"{model[:NAME_CHARS_MAX]}…"
        super().__init__(f"model {shown} is not served here{names}")


class SwapNotFound(Unknown):
    """There is no swap of that id, or it is too old to be shown."""


class AgentNotFound(Unknown):
    """There is no agent of that id, or it was deleted."""


class ConversationNotFound(Unknown):
    """There is no conversation of that id, or it was deleted."""


class CompletionNotFound(NotFound):
    """There is no completed chat completion of that id that was to be stored."""

    def __init__(self, name: str) -> None:
        super().__init__(f"stored completion {name} does not exist")


class ItemNotFound(Unknown):
    """A conversation has no item of that id."""


class WorkerNotFound(NotFound):
    """No living worker has that id or place."""

    def __init__(self, worker: str, *, known: Sequence[str]) -> None:
        alive = ", ".join(known) or "none"
        super().__init__(f"no worker {worker} is alive; there is: {alive}")


class BatchNotFound(Unknown):
    """There is no batch of that id, or it was deleted."""


class ScheduleNotFound(Unknown):
    """There is no schedule of that id, or it was removed."""


class PredecessorFailed(SemanticError):
    """A job that another one waited for ended without an answer."""

    def __init__(self, job: str, status: str) -> None:
        super().__init__(f"job {job}, which this one waited for, ended as {status}")


class ScheduleExists(Conflict):
    """A schedule has that name already."""

    def __init__(self, name: str) -> None:
        super().__init__(f"a schedule {name} exists already; remove it first")


class FileNotFound(Unknown):
    """There is no file of that id, or it was deleted or has expired."""


class WebhookNotFound(Unknown):
    """There is no webhook of that id, or it has been over for long."""


class PayloadMissing(NotFound):
    """A payload that an event refers to was erased or never stored."""

    def __init__(self, digest: str) -> None:
        super().__init__(f"payload {digest} is not stored")


#: What a reader catches that can go on without a text.
TEXT_LOST: Final = (PayloadMissing, PayloadDamaged)


class SubscriptionNotFound(NotFound):
    """The caller has no subscription of that name."""

    def __init__(self, name: str) -> None:
        super().__init__(f"subscription {name!a} does not exist")


class SubscriptionTaken(Conflict):
    """The name belongs to a subscription to other events, or with another webhook."""

    def __init__(self, name: str) -> None:
        super().__init__(f"subscription {name!a} exists and wants something else; delete it first")
