"""Ports of the engine and of recorded answers; each docstring is the contract."""

from __future__ import annotations

from typing import Protocol

from domain.chat.divergence import RecordedAnswer
from domain.chat.generation import NO_CLAIM, Claim, GenerationTask, Outcome, PreparedPrompt
from domain.chat.request import ChatRequest
from domain.values import Digest, JobId, ModelCard, Owner, PromptEncoding


class RecordedAnswers(Protocol):
    """The answers of jobs, with their tokens."""

    def find(self, job_id: JobId) -> RecordedAnswer | None:
        """Return the complete answer of a job.

        Returns:
            ``None`` if there is no such job, if its answer is not complete (the job is open or
            failed, or a stop text, a caller or a deadline ended it), or if the answer was erased.
        """
        ...

    def request(self, digest: Digest) -> ChatRequest | None:
        """Return a request by its digest; ``None`` if it was erased."""
        ...


class Cancellable(Protocol):
    """A wait for a turn, or a generation, that a cancel signal ends."""

    def cancel(self) -> None:
        """Request the end; a second call does nothing."""
        ...


class GenerationHandle(Protocol):
    """An accepted generation. It computes at once and emits after ``release``."""

    def release(self) -> None:
        """Emit its items, from the first one on; called once its attempt is in the log."""
        ...

    def cancel(self) -> None:
        """Request the end at the next step; a second call does nothing."""
        ...

    def wait_for_tokens(self) -> None:
        """Block until this attempt has computed its first tokens, or has ended."""
        ...

    def wait(self, timeout_s: float | None = None) -> Outcome | None:
        """Block until the generation has ended; return ``None`` on a timeout."""
        ...


class InferenceEngine(Protocol):
    """The loaded model. It emits the stream items except the terminal one."""

    def card(self) -> ModelCard:
        """Return the card of the loaded model."""
        ...

    def prepare(
        self,
        request: ChatRequest,
        encoding: PromptEncoding = PromptEncoding.MARKS_AS_TEXT,
        cache_owner: Owner | None = None,
        claim: Claim = NO_CLAIM,
    ) -> PreparedPrompt:
        """Render and tokenise a request; safe to call from many threads at once.

        Args:
            encoding: How its text is encoded; a later attempt uses that of the first one.
            cache_owner: Only prompts with the same one share cached blocks with it.

        Raises:
            PromptTooLong: The prompt leaves no room for one token.
            InvalidRequest: The chat template refuses the messages.
            GenerationCancelled: The prompt is no longer wanted.
        """
        ...

    def submit(self, task: GenerationTask) -> GenerationHandle:
        """Accept a task; it joins the running batch as soon as there is room.

        Its items are held back until ``GenerationHandle.release``, so that the prompt is computed
        while the attempt is being recorded. Only a failure or a cancellation ends it before that.

        Raises:
            EngineFailure: The engine has stopped.
            GenerationCancelled: The answer is no longer wanted.
        """
        ...
