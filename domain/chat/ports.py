"""Ports of the engine and of recorded answers; each docstring is the contract."""

from __future__ import annotations

from typing import Protocol

from domain.chat.echo import RecordedAnswer
from domain.chat.generation import GenerationTask, Outcome, PreparedPrompt
from domain.chat.request import ChatRequest
from domain.values import (
    Digest,
    JobId,
    ModelCard,
)


class RecordedAnswers(Protocol):
    """What jobs have said, token by token."""

    def find(self, job_id: JobId) -> RecordedAnswer | None:
        """Return the whole answer of a job.

        Returns:
            ``None`` if there is no such job, if it has no whole answer (it goes on, failed, or was
            ended by a stop text, by a caller or a deadline), or if the answer was erased.
        """
        ...

    def request(self, digest: Digest) -> ChatRequest | None:
        """Return a request by its digest; ``None`` if it was erased."""
        ...


class Cancellable(Protocol):
    """What a nudge ends: a wait for a turn, or a generation."""

    def cancel(self) -> None:
        """Ask for the end; a second call does nothing."""
        ...


class GenerationHandle(Protocol):
    """A generation that was handed to the engine. It computes at once but says nothing yet."""

    def release(self) -> None:
        """Let its items out, from the first one on; called once its attempt stands in the log."""
        ...

    def cancel(self) -> None:
        """Ask for the end at the next step; a second call does nothing."""
        ...

    def wait(self, timeout_s: float | None = None) -> Outcome | None:
        """Block until the generation ended; ``None`` if the time ran out first."""
        ...


class InferenceEngine(Protocol):
    """The loaded model. It writes stream items up to, not including, the terminal one."""

    def card(self) -> ModelCard:
        """Return what is loaded."""
        ...

    def prepare(self, request: ChatRequest) -> PreparedPrompt:
        """Render and tokenise a request; safe to call from many threads at once.

        Raises:
            PromptTooLong: The prompt leaves no room for one token.
            InvalidRequest: The chat template refuses the messages.
        """
        ...

    def submit(self, task: GenerationTask) -> GenerationHandle:
        """Hand a task over; it joins the running batch as soon as there is room.

        Its items are held until ``GenerationHandle.release``, so that the prompt can be read while
        the attempt is being recorded. An outcome other than a failure or a cancellation waits too.

        Raises:
            EngineFailure: The engine has stopped.
        """
        ...
