"""Binds requests to registered models."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from api.protocols.shared.parsed_request import ParsedRequest
from domain.job.new_job import NewJob
from domain.job.state import Job
from domain.model.presence import LoadedModels
from domain.model.registry import ModelRegistry


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelBinding:
    """Finds the model of a request, and whether a worker has it.

    Attributes:
        registry: Returns the registered models.
        loaded: The models of the live workers.
    """

    registry: Callable[[], ModelRegistry]
    loaded: LoadedModels

    def bind(self, parsed: ParsedRequest) -> str | None:
        """Return the model that a request is bound to; ``None`` if it follows the loaded one.

        Raises:
            InvalidRequest: The model is of another kind.
            ModelNotFound: The name is unknown.
        """
        if not parsed.names_model:
            return None
        return self.registry().bind(parsed.chat.model, embeds=parsed.chat.embedding is not None)

    def require(self, command: NewJob) -> None:
        """Refuse a request that cannot wait for its model; blocks.

        Raises:
            ModelNotLoaded: No worker has the model.
        """
        if command.submitted.bound_model is not None and not command.submitted.waits_for_model:
            embeds = command.request.embedding is not None
            self.loaded.require(command.submitted.bound_model, embeds=embeds)

    def require_present(self, job: Job | None) -> None:
        """Refuse to read a job that waits for its model; blocks.

        Raises:
            ModelNotLoaded: No worker has the model.
        """
        if job is not None and job.submitted.bound_model is not None and not job.status.is_terminal:
            self.loaded.require(job.submitted.bound_model, embeds=job.kind == "embedding")

    def same(self, jobs: Iterable[Job], command: NewJob) -> tuple[Job, ...]:
        """Return the jobs of the same binding that do not wait for their model; blocks."""
        bound = command.submitted.bound_model
        return tuple(
            job
            for job in jobs
            if job.submitted.bound_model == bound and not self.loaded.awaits_model(job)
        )
