"""The queue between the threads that end spans and the one that exports them."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Sequence
from typing import Final

from ops.logs import Logger
from ops.tracing.span import Span

#: Spans that wait for their export; further ones are dropped.
SPANS_MAX: Final = 4096
#: Spans of one request to the receiver.
BATCH_SPANS_MAX: Final = 512
#: How long the exporter waits for more spans after the first one, in seconds.
LINGER_S: Final = 1.0
#: How long the end of the process waits for the export of the last spans, in seconds.
CLOSE_S: Final = 2.0
_SAMPLE_DIGITS: Final = 14


class SpanQueue:
    """``SpanSink`` that hands batches of spans to a thread of its own.

    The thread waits without a timeout while there are no spans. A receiver that fails costs one log
    line, and one when it works again.

    Args:
        send: Exports a batch; returns whether the receiver took it. May block and raise.
        logger: Records a receiver that fails.
        sample_ratio: Part of the new traces whose spans are exported, in [0, 1].
        has_texts: Whether spans may carry texts of prompts and answers.
        stop_sending: Interrupts ``send``; called at the end of the process.
        spans_max: Spans that may wait.
        linger_s: Seconds between the first span of a batch and its export.
    """

    is_on = True

    def __init__(
        self,
        send: Callable[[Sequence[Span]], bool],
        logger: Logger,
        *,
        sample_ratio: float = 1.0,
        has_texts: bool = False,
        stop_sending: Callable[[], None] = lambda: None,
        spans_max: int = SPANS_MAX,
        linger_s: float = LINGER_S,
    ) -> None:
        self._send = send
        self._logger = logger.bind(component="tracing")
        self.has_texts = has_texts
        self._stop_sending = stop_sending
        self._spans_max = spans_max
        self._linger_s = linger_s
        # Of the last 56 bits of the id, which are random in every id that the W3C allows.
        self._sampled_below = round(sample_ratio * 16**_SAMPLE_DIGITS)
        self._spans: deque[Span] = deque()
        self._changed = threading.Condition()
        self._is_closing = False
        self._is_failing = False
        #: Spans that were not exported: too many waited, or the receiver did not take them.
        self.dropped = 0
        self._thread = threading.Thread(target=self._run, name="span-export", daemon=True)
        self._thread.start()

    def samples(self, trace_id: str) -> bool:
        """Whether the spans of a new trace are exported; every process decides alike."""
        return int(trace_id[-_SAMPLE_DIGITS:], 16) < self._sampled_below

    def put(self, span: Span) -> None:
        """Add a span, or drop it if too many wait."""
        with self._changed:
            if self._is_closing or len(self._spans) >= self._spans_max:
                self.dropped += 1
                return
            self._spans.append(span)
            if len(self._spans) in {1, BATCH_SPANS_MAX}:
                self._changed.notify()

    def close(self) -> None:
        """Export what is left, for at most ``CLOSE_S`` seconds."""
        with self._changed:
            self._is_closing = True
            self._changed.notify()
        self._thread.join(CLOSE_S)
        self._stop_sending()
        if self.dropped:
            self._logger.info("spans_dropped", spans=self.dropped)

    def _run(self) -> None:
        while batch := self._next_batch():
            self._export(batch)

    def _next_batch(self) -> list[Span]:
        """Wait for spans, and for more of them; return none at the end of the process."""
        with self._changed:
            self._changed.wait_for(lambda: bool(self._spans) or self._is_closing)
            self._changed.wait_for(self._is_due, self._linger_s)
            count = min(BATCH_SPANS_MAX, len(self._spans))
            return [self._spans.popleft() for _ in range(count)]

    def _is_due(self) -> bool:
        return self._is_closing or len(self._spans) >= BATCH_SPANS_MAX

    def _export(self, batch: Sequence[Span]) -> None:
        why = "the receiver did not take the spans"
        try:
            is_taken = self._send(batch)
        except Exception as error:  # noqa: BLE001 - tracing must not end with one batch
            is_taken, why = False, repr(error)
        if is_taken and self._is_failing:
            self._logger.info("traces_exported_again", spans_dropped=self.dropped)
        if not is_taken:
            with self._changed:
                self.dropped += len(batch)
            if not self._is_failing:
                self._logger.warning("traces_not_exported", why=why)
        self._is_failing = not is_taken
