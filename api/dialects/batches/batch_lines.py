"""Lines of batches read from the payload store, and their results from the jobs' outputs."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

from api.answer import AssembledAnswer, ending_or_error
from api.dialects.batches.lines import ANTHROPIC, LineResult, encode_result, file_faults, parse_line
from api.parsed_request import RequestDefaults
from domain.batch.jsonl import read_lines
from domain.batch.ports import BatchLine, BatchViews
from domain.batch.state import Batch
from domain.chat.items import Failed
from domain.chat.stored_answer import StoredAnswer
from domain.errors import TEXT_LOST, InvalidRequest, ModelNotFound, SemanticError
from domain.job.state import Job
from domain.log.ports import PayloadStore
from domain.model.registry import ModelRegistry
from domain.values import Digest, JobStatus

#: Lines whose jobs are looked up together.
LINES_AT_ONCE: Final = 100


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchLines:
    """``domain.batch.ports.LineProtocol`` for Anthropic's batches and OpenAI's.

    Attributes:
        payloads: Lines and answers.
        views: The jobs of the lines.
        defaults: Values for the open fields of a line.
        registry: Returns the registered models.
        lines_max: Most lines of one file.
    """

    payloads: PayloadStore
    views: BatchViews
    defaults: RequestDefaults
    registry: Callable[[], ModelRegistry]
    lines_max: int

    def read(self, batch: Batch, raw: bytes) -> BatchLine:
        """See ``LineProtocol.read``."""
        line = parse_line(batch, raw, self.defaults)
        if isinstance(line.request, SemanticError):
            return line
        try:
            embeds = line.request.embedding is not None
            bound = self.registry().bind(line.model, embeds=embeds)
            return replace(line, bound_model=bound)
        except (InvalidRequest, ModelNotFound) as error:
            return replace(line, request=error)

    def faults(
        self, batch: Batch, lines: Iterable[tuple[int, bytes]]
    ) -> Sequence[Mapping[str, object]]:
        """See ``LineProtocol.faults``."""
        return file_faults(batch, lines, lines_max=self.lines_max)

    def measure(self, batch: Batch) -> Mapping[str, int]:
        """See ``LineProtocol.measure``."""
        if batch.facts.protocol == ANTHROPIC:
            return {}
        sizes: dict[str, int] = {}
        for part, text in self.results(batch):
            sizes[part] = sizes.get(part, 0) + len(text)
        return sizes

    def results(self, batch: Batch) -> Iterator[tuple[str, bytes]]:
        """Yield the result of each line, in order, with the part of the results it belongs to.

        Memory holds a chunk of the lines and ``LINES_AT_ONCE`` rows of jobs. After the lines have
        been erased, the iterator ends early.
        """
        try:
            for number, raw, view in self._lines(batch):
                yield encode_result(batch, LineResult(number, raw, view, self._answer(view)))
        except TEXT_LOST:
            return

    def _lines(self, batch: Batch) -> Iterator[tuple[int, bytes, Job | None]]:
        views: Mapping[int, Job] = {}
        for number, raw in enumerate(read_lines(batch.facts.content, self.payloads.get)):
            if number % LINES_AT_ONCE == 0:
                views = self.views.line_jobs(batch.id, first=number, limit=LINES_AT_ONCE)
            yield number, raw, views.get(number)

    def _answer(self, view: Job | None) -> AssembledAnswer | SemanticError | None:
        """Return the answer of a job, its failure, or ``None`` if the job never ran to an end."""
        if view is None or view.status in {JobStatus.CANCELLED, JobStatus.EXPIRED}:
            return None
        if view.status is not JobStatus.COMPLETED or view.output is None:
            # The job failed, or was enqueued again after the batch had ended.
            message = view.error_message or "this line is being tried again"
            failed = Failed(error=view.error or "internal_error", message=message, retryable=False)
            end = ending_or_error(failed)
            return end if isinstance(end, SemanticError) else None
        try:
            answer = StoredAnswer.from_bytes(self.payloads.get(Digest(view.output)))
        except TEXT_LOST as error:
            return error
        return AssembledAnswer.from_stored(view, answer)
