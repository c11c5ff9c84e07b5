"""The attempts of this worker: their log lines, and their spans from recorded times."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final

import structlog
from structlog.contextvars import bind_contextvars

from domain.chat.generation import Outcome
from domain.chat.request import ChatRequest, Message
from domain.events.job import AttemptFailed, AttemptStarted, JobRetried
from domain.events.worker import WorkerLost
from domain.job.commit import AttemptReport, AttemptRun, LoadedJob
from domain.log.codec import decode_recorded
from domain.log.ports import EventLog
from domain.log.trace import TraceContext, parse_traceparent, trace_id_of
from domain.values import JobId, StopReason, StreamName
from ops.observe.span import AttributeValue, Span, SpanSink

#: Characters of one attribute. Receivers refuse requests that are too long.
TEXT_CHARS_MAX: Final = 65_536
#: Characters of the text of one message.
MESSAGE_CHARS_MAX: Final = 16_384
_INPUT: Final = "gen_ai.input.messages"
_OUTPUT: Final = "gen_ai.output.messages"


def texts_of(run: AttemptRun) -> Mapping[str, AttributeValue]:
    """Return the attributes; the oldest messages of a long prompt are left out."""
    kept: list[str] = []
    chars = 0
    given = list(_input(run.request))
    for message in reversed(given):
        text = _json(message)
        chars += len(text) + 1
        if chars > TEXT_CHARS_MAX:
            break
        kept.append(text)
    attributes: dict[str, AttributeValue] = {_INPUT: f"[{','.join(reversed(kept))}]"}
    if len(kept) < len(given):
        attributes["semantic.messages_left_out"] = len(given) - len(kept)
    attributes[_OUTPUT] = _json([_output(run.outcome)])
    return attributes


def _input(request: ChatRequest) -> Iterator[dict[str, Any]]:
    if request.raw is not None:
        return  # it may consist of token ids
    for message in request.messages:
        yield {"role": message.role, "parts": list(_parts(message))}


def _parts(message: Message) -> Iterator[dict[str, Any]]:
    if message.tool_call_id is not None:
        yield {
            "type": "tool_call_response",
            "id": message.tool_call_id,
            "response": _cut(message.content),
        }
        return
    if message.reasoning:
        yield {"type": "reasoning", "content": _cut(message.reasoning)}
    if message.content:
        yield {"type": "text", "content": _cut(message.content)}
    for call in message.tool_calls:
        arguments = _cut(_json(call.arguments))
        yield {"type": "tool_call", "id": call.id, "name": call.name, "arguments": arguments}


def _output(outcome: Outcome) -> dict[str, Any]:
    parts: list[dict[str, Any]] = []
    if outcome.thinking:
        parts.append({"type": "reasoning", "content": _cut(outcome.thinking)})
    if outcome.text:
        parts.append({"type": "text", "content": _cut(outcome.text)})
    for call in outcome.calls:
        arguments = _cut(call.arguments)
        one = {"type": "tool_call", "id": call.id, "name": call.name, "arguments": arguments}
        parts.append(one)
    return {"role": "assistant", "parts": parts, "finish_reason": outcome.stop_reason.value}


def _cut(text: str) -> str:
    # A lone surrogate cannot be sent.
    sendable = text.encode("utf-8", "replace").decode()
    return sendable if len(sendable) <= MESSAGE_CHARS_MAX else sendable[:MESSAGE_CHARS_MAX] + "…"


def _json(value: Any) -> str:  # noqa: ANN401 - any JSON value
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))


#: Of ``gen_ai.provider.name``.
PROVIDER: Final = "semantic"
#: The error of an attempt that ended with its worker.
WORKER_LOST: Final = "worker_lost"
#: Phases shorter than this have no span, in milliseconds.
PHASE_MS_MIN: Final = 1.0
_NS_PER_MS: Final = 1_000_000
_FINISH_REASONS: Final = {
    StopReason.END_TURN: "stop",
    StopReason.STOP_SEQUENCE: "stop",
    StopReason.MAX_TOKENS: "length",
    StopReason.CONTEXT_WINDOW: "length",
    StopReason.CANCELLED: "cancelled",
}


@dataclass(frozen=True, slots=True)
class LostAttempt:
    """An attempt that ended with its worker."""

    started: AttemptStarted
    began: str


def spans_of(report: AttemptReport, log: EventLog, *, has_texts: bool) -> Iterator[Span]:
    """Yield the spans of a report; none if its trace is not sampled.

    Args:
        log: Knows when the workers of lost attempts were found dead.
        has_texts: Whether the spans carry prompt and answer.
    """
    job = report.loaded.job
    trace = parse_traceparent(job.submitted.trace)
    if trace is None or not trace.is_sampled:
        return
    link = parse_traceparent(job.submitted.trace_link)
    builder = _SpanBuilder(report, trace, log, links=() if link is None else (link,))
    yield from builder.spans(has_texts=has_texts)


class _SpanBuilder:
    """Builds the spans of one report."""

    def __init__(
        self,
        report: AttemptReport,
        trace: TraceContext,
        log: EventLog,
        links: Sequence[TraceContext],
    ) -> None:
        self.report = report
        self.trace = trace
        self.log = log
        self.links = links
        #: Instant from which the job waited for the attempt, numbers of the earlier attempts, and
        #: those right before this one that ended with their workers.
        self.waiting_since = report.loaded.job.created_at
        self.before: list[int] = []
        self.lost: list[LostAttempt] = []
        for recorded in report.loaded.recorded:
            event = decode_recorded(recorded)
            if isinstance(event, AttemptStarted):
                self.before.append(event.attempt)
                self.lost.append(LostAttempt(event, recorded.recorded_at))
            elif isinstance(event, AttemptFailed | JobRetried):
                self.waiting_since = recorded.recorded_at
                self.lost.clear()
        job, run = report.loaded.job, report.run
        self.job_id, self.submitted = job.id, job.submitted
        self.number = job.attempt + 1 if run is None else run.task.attempt
        is_completion = job.submitted.protocol == "openai-completions"
        self.operation = "text_completion" if is_completion else "chat"

    def spans(self, *, has_texts: bool) -> Iterator[Span]:
        run = self.report.run
        if self.links and not self.before:
            yield self._submit()
        for lost in self.lost:
            yield self._lost(lost)
        yield self._queue()
        if run is not None:
            texts = texts_of(run) if has_texts else {}
            yield self._attempt(run, texts)
            yield from self._phases(run)

    def _submit(self) -> Span:
        """Return the first span of a job that no request submitted: a line of a batch."""
        at = _ns(self.report.loaded.job.created_at)
        return Span(
            name="submit",
            context=self.trace,
            parent_id=None,
            start_ns=at,
            end_ns=at,
            attributes=self._names(),
            links=self.links,
        )

    def _queue(self) -> Span:
        run, since = self.report.run, _ns(self.waiting_since)
        if self.lost:
            since = max(since, self._lost_at(self.lost[-1]))
        ended = self.report.ended_at if run is None else run.submitted_at
        return Span(
            name="queue",
            context=self.trace.derived(self.job_id, "queue", self.number),
            parent_id=self.trace.span_id,
            start_ns=since,
            end_ns=_ns_of(ended),
            attributes=self._names() | {"semantic.job.priority": self.submitted.priority.value},
            error=self.report.error if run is None else None,
        )

    def _attempt(self, run: AttemptRun, texts: Mapping[str, AttributeValue]) -> Span:
        usage, timings = run.outcome.usage, run.outcome.timings
        sampling = run.task.prompt.sampling
        reason = _FINISH_REASONS[run.outcome.stop_reason]
        return Span(
            name=f"{self.operation} {run.model.id}",
            context=attempt_span(self.trace, self.job_id, run.task.attempt),
            parent_id=self.trace.span_id,
            start_ns=_ns_of(run.submitted_at),
            end_ns=_ns_of(self.report.ended_at),
            attributes={
                **self._model_attributes(run.model.id, run.task.attempt),
                "gen_ai.request.temperature": sampling.temperature,
                "gen_ai.request.top_p": sampling.top_p,
                "gen_ai.request.top_k": sampling.top_k or None,
                "gen_ai.request.seed": sampling.seed,
                "gen_ai.response.finish_reasons": None if self.report.error else (reason,),
                "gen_ai.usage.input_tokens": usage.prompt_tokens,
                "gen_ai.usage.output_tokens": usage.completion_tokens,
                "gen_ai.usage.cache_read.input_tokens": usage.cached_tokens,
                "gen_ai.usage.reasoning.output_tokens": usage.reasoning_tokens,
                "semantic.cache.source": run.task.prompt.cache_source,
                "semantic.resumed_tokens": len(run.task.emitted),
                "semantic.first_token_ms": timings.first_token_ms,
                **texts,
            },
            links=self._earlier(run.task.attempt),
            error=self.report.error,
        )

    def _lost(self, lost: LostAttempt) -> Span:
        started = lost.started
        return Span(
            name=f"{self.operation} {started.model}",
            context=attempt_span(self.trace, self.job_id, started.attempt),
            parent_id=self.trace.span_id,
            start_ns=_ns(lost.began),
            end_ns=self._lost_at(lost),
            attributes={
                **self._model_attributes(started.model, started.attempt),
                "gen_ai.usage.input_tokens": started.prompt_tokens,
                "gen_ai.usage.cache_read.input_tokens": started.cached_tokens,
                "semantic.cache.source": started.cache_source,
                "semantic.resumed_tokens": started.resumed_tokens,
                "semantic.worker.id": started.worker,
            },
            links=self._earlier(started.attempt),
            error=WORKER_LOST,
        )

    def _lost_at(self, lost: LostAttempt) -> int:
        """Return when the worker of an attempt was found dead, as far as that is known."""
        found = (
            recorded.recorded_at
            for recorded in self.log.load(StreamName(lost.started.worker))
            if recorded.type == WorkerLost.__name__
        )
        return max(_ns(lost.began), _ns(next(found, lost.began)))

    def _phases(self, run: AttemptRun) -> Iterator[Span]:
        timings, begin = run.outcome.timings, _ns_of(run.submitted_at)
        admitted_ms = timings.admission_ms
        restored_ms = admitted_ms + timings.restore_ms
        computed_ms = max(restored_ms, admitted_ms + timings.prefill_ms)
        decoding_ms = timings.first_token_ms or computed_ms
        phases = (
            ("admission", 0.0, admitted_ms),
            ("restore", admitted_ms, restored_ms),
            ("prefill", restored_ms, computed_ms),
            ("decode", decoding_ms, decoding_ms + timings.decode_ms),
        )
        attempt = attempt_span(self.trace, self.job_id, run.task.attempt)
        for name, start_ms, end_ms in phases:
            if end_ms - start_ms >= PHASE_MS_MIN:
                yield Span(
                    name=name,
                    context=attempt.derived(self.job_id, name, run.task.attempt),
                    parent_id=attempt.span_id,
                    start_ns=begin + round(start_ms * _NS_PER_MS),
                    end_ns=begin + round(end_ms * _NS_PER_MS),
                )

    def _earlier(self, attempt: int) -> tuple[TraceContext, ...]:
        numbers = (one for one in self.before if one < attempt)
        earlier = (attempt_span(self.trace, self.job_id, number) for number in numbers)
        return (*self.links, *earlier)

    def _names(self) -> dict[str, AttributeValue | None]:
        return {
            "semantic.job.id": self.job_id,
            "semantic.request.id": self.report.loaded.job.correlation_id,
            "semantic.attempt": self.number,
        }

    def _model_attributes(self, model: str, attempt: int) -> dict[str, AttributeValue | None]:
        return {
            **self._names(),
            "semantic.attempt": attempt,
            "gen_ai.operation.name": self.operation,
            "gen_ai.provider.name": PROVIDER,
            "gen_ai.request.model": self.submitted.model,
            "gen_ai.response.model": model,
            "gen_ai.response.id": self.job_id,
            "gen_ai.agent.id": self.submitted.agent,
            "gen_ai.request.max_tokens": self.submitted.max_tokens,
        }


def attempt_span(trace: TraceContext, job_id: JobId, attempt: int) -> TraceContext:
    """Return the span of an attempt."""
    return trace.derived(job_id, "attempt", attempt)


def _ns(instant: str) -> int:
    return _ns_of(datetime.fromisoformat(instant))


def _ns_of(moment: datetime) -> int:
    return round(moment.timestamp() * 1_000_000) * 1_000


_log = structlog.get_logger(__name__)


class JobObserver:
    """``AttemptObserver`` of a worker."""

    def __init__(self, spans: SpanSink, log: EventLog) -> None:
        self._spans = spans
        self._log = log

    def loaded(self, job: LoadedJob) -> None:
        """Let the log lines of this thread name the request and its trace."""
        trace_id = trace_id_of(job.job.submitted.trace)
        bind_contextvars(request_id=job.job.correlation_id)
        if trace_id is not None:
            bind_contextvars(trace_id=trace_id)

    def ended(self, report: AttemptReport) -> None:
        """Log the end of an attempt; export its spans and those of attempts that died before."""
        _log_end(report)
        if not self._spans.is_on:
            return
        try:
            for span in spans_of(report, self._log, has_texts=self._spans.has_texts):
                self._spans.put(span)
        except Exception:  # noqa: BLE001 - the job has ended in the log and must be delivered
            _log.exception("spans_failed")


def _log_end(report: AttemptReport) -> None:
    run = report.run
    if run is None:
        _log.debug("job_ended_unstarted", error=report.error)
        return
    usage = run.outcome.usage
    _log.debug(
        "attempt_ended",
        attempt=run.task.attempt,
        error=report.error,
        stop_reason=run.outcome.stop_reason.value,
        prompt_tokens=usage.prompt_tokens,
        cached_tokens=usage.cached_tokens,
        completion_tokens=usage.completion_tokens,
    )
