"""The batch engine: one thread owns the model and repeats schedule, run, commit.

The way of a generation:

1. ``preparation`` renders and tokenises the request, on the caller's thread.
2. The engine thread admits sequences (``sequence_scheduler``), runs one step of the batch
   (``ports.ModelRunner``) and commits the sampled tokens (``batch_steps``).
3. While it runs, a constraint (``grammar``, ``reasoning_limit``) masks the tokens that the answer
   may not contain.
4. The emitter thread (``emitter``) turns token ids into items: ``text_assembler`` feeds them
   through a detokenizer and an answer parser (``output``).
5. Its outbox publishes the items and delivers the outcome.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from functools import partial
from itertools import count
from queue import Empty, SimpleQueue

import structlog

from domain.chat.generation import NO_CLAIM, Claim, GenerationTask, PreparedPrompt
from domain.chat.items import Failed
from domain.chat.ports import GenerationHandle
from domain.chat.request import ChatRequest
from domain.engine.control import EngineValues
from domain.engine.figures import LiveFigures
from domain.errors import DeviceFailed, Draining, EngineFailure, EngineLost
from domain.job.ports import ItemSink
from domain.ports import Clock
from domain.values import ModelCard, Owner, PromptEncoding, StopReason, WaitingJob
from ops.observe.counter_file import Figures
from worker.engine.batch_steps import BatchSteps, failed_by, stopped_by
from worker.engine.emitter import Emitter
from worker.engine.ports import LoadedModel, ModelRunner, SideWork, is_device_error
from worker.engine.preparation import admission_of, prepare
from worker.engine.scheduling.step_watch import StepKind, StepSize, StepWatch
from worker.engine.sequence import Handle, Sequence, SequenceTimes
from worker.engine.sequence_scheduler import SequenceScheduler
from worker.engine.text_assembler import assembler_for

_log = structlog.get_logger(__name__)

#: Seconds that ``close`` waits for the emitter to publish the last items.
LAST_ITEMS_S = 5.0
#: Seconds that ``close`` waits for the engine thread to finish its step and its last saves.
LAST_STEP_S = 90.0
#: Seconds between two looks at deferred work while nothing runs.
BACKGROUND_S = 0.002
#: Part of the longest pause of a stream that a slice of side work may take.
GAP_SHARE = 0.25
#: Length of a slice where streams may pause for any time, and while none runs, in seconds.
IDLE_SLICE_S = 0.05


#: A generation to run, or what the engine thread is to do with the runner.
_Message = Sequence | Callable[[ModelRunner], None]

_SAVE = StepSize(StepKind.SAVE, 0, 0)
_STOPPED = Failed(error=Draining.code, message="the worker stopped", retryable=True)


class BatchEngine:
    """``domain.chat.ports.InferenceEngine`` with continuous batching.

    The engine thread alone calls the runner. The emitter thread alone assembles text and calls the
    sink. Callers' threads render prompts and put messages into the inbox. A generation waits, runs
    and ends; a preempted one waits again.

    Args:
        runner_factory: Makes the runner, on the engine thread.
        max_batch_size: Most generations that run at once; ``FairQueue`` orders the others.
        stream_interval_s: Seconds between two publishes of items; the first and the last item of a
            generation are published at once.
        on_device_failure: Called on the engine thread before it dies of an error of the device;
            its memory cannot be trusted, so the process has to end.

    Attributes:
        beside: Gets a slice before each step, while the tokens of the step before are on their way
            to their readers. Set before the start.
    """

    def __init__(
        self,
        *,
        runner_factory: Callable[[], ModelRunner],
        sink: ItemSink,
        clock: Clock,
        max_batch_size: int,
        stream_interval_s: float = 0.0,
        batch_window_s: float = 0.0,
        on_device_failure: Callable[[], None] = lambda: None,
        watch: StepWatch | None = None,
    ) -> None:
        assert max_batch_size >= 1, "a batch needs at least one place"
        self._runner_factory = runner_factory
        self._on_device_failure = on_device_failure
        self._clock = clock
        self._watch = watch or StepWatch()
        self.beside = SideWork()
        self._slice_s = IDLE_SLICE_S
        self._inbox: SimpleQueue[_Message] = SimpleQueue()
        self._emitter = Emitter(
            sink,
            clock,
            lambda sequence: self._inbox.put(partial(self._scheduler.withdraw, sequence)),
            self._ended,
            self._emitter_died,
            interval_s=stream_interval_s,
        )
        self._thread = threading.Thread(target=self._run, name="engine", daemon=True)
        self._loaded = threading.Event()
        self._model: LoadedModel | None = None
        self._fatal_error: BaseException | None = None
        self._live_lock = threading.Lock()
        self._live: set[Sequence] = set()
        self._idle = threading.Condition(self._live_lock)
        self._accepting = True
        self._arrivals = count()
        # The engine thread owns the attributes below.
        self._scheduler = SequenceScheduler(
            places=max_batch_size,
            window_s=batch_window_s,
            cached_prefix=lambda tokens: self._require_model().cached_prefix(tokens),
            on_progress=self._emitter.advance,
            on_failure=self._fail_admission,
        )
        self._stopped = False

    # -- life cycle ------------------------------------------------------------------------------

    def start(self) -> None:
        """Load the model and start both threads; return when the model is ready.

        Raises:
            ModelLoadError: The model cannot be loaded.
            EngineFailure: Loading failed with an unexpected error.
        """
        self._emitter.start()
        self._thread.start()
        self._loaded.wait()
        if self._fatal_error is not None:
            self._thread.join(LAST_STEP_S)
            self._emitter.close(LAST_ITEMS_S)
            if isinstance(self._fatal_error, EngineFailure):
                raise self._fatal_error
            msg = f"the model could not be loaded: {self._fatal_error}"
            raise EngineFailure(msg) from self._fatal_error

    def tune(self, values: EngineValues) -> None:
        """Run with other values from the next step on; any thread may call it."""
        self._inbox.put(partial(self._tune, values))

    def wake(self) -> None:
        """Look at the deferred work of the runner; any thread may call it."""
        self._inbox.put(lambda _: None)

    def counted(self) -> Figures:
        """Return its metrics by family and label; any thread may call it."""
        grammars = 0 if self._model is None else self._model.grammar_bytes()
        return {
            "grammar_cache_bytes": {"": float(grammars)},
            "batch_size": self._scheduler.batch_sizes.read(),
        }

    def waiting_jobs(self) -> tuple[WaitingJob, ...]:
        """Return the submitted jobs that wait for room in the batch, in their order."""
        return self._scheduler.waiting_jobs()

    def figures(self) -> LiveFigures:
        """Return what runs and what was done so far; any thread may call it."""
        now, slow_step = self._clock.monotonic(), self._watch.slow_step()
        return LiveFigures(self._scheduler.row_figures(now), self._scheduler.counts, slow_step)

    def is_alive(self) -> bool:
        """Whether both threads run."""
        return self._thread.is_alive() and self._emitter.is_alive()

    def drain(self, drain_s: float) -> bool:
        """Accept no more work, and wait for the generations; return whether all have ended."""
        with self._live_lock:
            self._accepting = False
            return self._idle.wait_for(lambda: not self._live, drain_s)

    def close(self, drain_s: float) -> None:
        """Drain, then end both threads; unfinished generations fail retryably."""
        self.drain(drain_s)
        self._inbox.put(self._stop)
        self._thread.join(LAST_STEP_S)
        if not self._emitter.close(LAST_ITEMS_S):
            _log.warning("last_items_lost")
            self._abandon(_STOPPED)

    def abandon(self, why: str) -> None:
        """End all generations although the engine thread is in a step that does not return.

        Only the generations of the step fail with ``why``; the others wait for the next worker.
        """
        self._fatal_error = EngineLost(why)
        failure = stopped_by(self._fatal_error)
        self.beside.abandon(failure)
        with self._live_lock:
            self._accepting = False
            live = set(self._live)
        running, now = set(self._scheduler.running.values()), self._clock.monotonic()
        for sequence in live:
            cause = failure if sequence in running else _STOPPED
            self._emitter.end(sequence, now, StopReason.END_TURN, cause)

    # -- domain.chat.ports.InferenceEngine ---------------------------------------------------

    def card(self) -> ModelCard:
        """Return the description of the loaded model."""
        return self._require_model().card

    def prepare(
        self,
        request: ChatRequest,
        encoding: PromptEncoding = PromptEncoding.MARKS_AS_TEXT,
        cache_owner: Owner | None = None,
        claim: Claim = NO_CLAIM,
    ) -> PreparedPrompt:
        """Render and tokenise a request. Safe to call from any thread."""
        return prepare(request, self._require_model(), encoding, cache_owner, claim)

    def submit(self, task: GenerationTask) -> GenerationHandle:
        """Enqueue a task; it joins the running batch as soon as there is room."""
        sequence = self._sequence(task)
        is_over = sequence.assembler.is_over
        reason = sequence.natural_stop_reason() if is_over else sequence.limit_reached()
        with self._live_lock:
            if not self._accepting:
                raise self._unavailable()
            self._live.add(sequence)
            if reason is None:
                self._inbox.put(sequence)
        if reason is not None:
            # The earlier attempt emitted all items except the last one.
            self._emitter.end(sequence, self._clock.monotonic(), reason)
        return sequence.handle

    def _sequence(self, task: GenerationTask) -> Sequence:
        model = self._require_model()
        sequence = Sequence(
            task=task,
            assembler=assembler_for(model, task),
            handle=Handle(
                lambda: self._inbox.put(partial(self._cancel, sequence)),
                lambda: self._emitter.release(sequence),
            ),
            times=SequenceTimes(self._clock.monotonic()),
            admission=admission_of(task, model, arrival=next(self._arrivals)),
            context_length=model.card.context_length,
        )
        sequence.replay_earlier_tokens()
        return sequence

    # -- the engine thread -----------------------------------------------------------------------

    def _run(self) -> None:
        failure = _STOPPED
        try:
            runner = self._runner_factory()
            self._model = runner.load()
            self._loaded.set()
            try:
                self._serve(self._model, runner)
            except BaseException as error:
                if is_device_error(error):
                    self.beside.abandon(stopped_by(error))
                else:
                    self._close(runner)
                raise
            self._close(runner)
        except BaseException as error:  # noqa: BLE001 - the thread reports any defect, then ends
            self._fatal_error = error
            failure = stopped_by(error)
            if self._loaded.is_set():
                _log.critical("engine_died", exc_info=error)
                if is_device_error(error):
                    self._on_device_failure()
        self._end_all(failure)
        self._loaded.set()

    def _close(self, runner: ModelRunner) -> None:
        self.beside.close()
        runner.close()

    def _serve(self, model: LoadedModel, runner: ModelRunner) -> None:
        steps = BatchSteps(model, runner, self._scheduler, self._emitter, self._clock)
        while True:
            self._receive(runner)
            if self._stopped:
                self._scheduler.park_all(runner)
                return
            with self._watch.step(self._scheduler.admission_size()):
                self._scheduler.admit(runner, self._clock.monotonic())
            if self._scheduler.running:
                self._emitter.wait_for_room()
                with self._watch.step(self._scheduler.step_size()):
                    self.beside.run_slice(self._slice_s)
                    steps.run()

    def _receive(self, runner: ModelRunner) -> None:
        """Handle the messages in the inbox; wait for one if no sequence runs."""
        wait_s = self._scheduler.wait_s(self._clock.monotonic())
        if wait_s != 0:
            with self._watch.step(_SAVE):
                is_left = runner.background()
                is_left = self.beside.run_slice(IDLE_SLICE_S) or is_left
                wait_s = BACKGROUND_S if is_left else wait_s
        while wait_s != 0 or not self._inbox.empty():
            try:
                message = self._inbox.get(block=wait_s != 0, timeout=wait_s)
            except Empty:
                return
            wait_s = 0.0
            if isinstance(message, Sequence):
                self._scheduler.add(message)
            else:
                message(runner)

    def _cancel(self, sequence: Sequence, runner: ModelRunner) -> None:
        self._scheduler.withdraw(sequence, runner)
        self._emitter.end(sequence, self._clock.monotonic())

    def _tune(self, values: EngineValues, runner: ModelRunner) -> None:
        self._scheduler.tune(values)
        gap_max_s = values.gap_max_ms / 1000
        self._slice_s = GAP_SHARE * gap_max_s or IDLE_SLICE_S
        runner.set_gap(gap_max_s)

    def _stop(self, _: ModelRunner) -> None:
        self._stopped = True

    def _fail_admission(self, sequence: Sequence, error: Exception) -> None:
        failure = failed_by(error, retryable=False)
        self._emitter.end(sequence, self._clock.monotonic(), StopReason.END_TURN, failure)

    def _end_all(self, failure: Failed) -> None:
        """End all generations and accept no more; only those in the batch get ``failure``."""
        with self._live_lock:
            self._accepting = False
        running, waiting = self._scheduler.clear()
        while not self._inbox.empty():
            message = self._inbox.get()
            if isinstance(message, Sequence):
                waiting.append(message)
        now = self._clock.monotonic()
        for sequence in running:
            self._emitter.end(sequence, now, StopReason.END_TURN, failure)
        for sequence in waiting:
            self._emitter.end(sequence, now, StopReason.END_TURN, _STOPPED)

    # -- called from other threads ---------------------------------------------------------------

    def _ended(self, sequence: Sequence) -> None:
        with self._live_lock:
            self._live.discard(sequence)
            self._idle.notify_all()

    def _emitter_died(self, error: BaseException) -> None:
        self._fatal_error = error
        with self._live_lock:
            self._accepting = False
        self._inbox.put(self._stop)
        self._abandon(stopped_by(error))

    def _abandon(self, failure: Failed) -> None:
        """Resolve all handles when no thread is left to do it."""
        with self._live_lock:
            left, self._live = self._live, set()
            self._idle.notify_all()
        now = self._clock.monotonic()
        for sequence in left:
            sequence.handle.resolve(sequence.outcome(now, StopReason.END_TURN, failure))

    def _require_model(self) -> LoadedModel:
        if self._model is None or self._fatal_error is not None:
            raise self._unavailable()
        return self._model

    def _unavailable(self) -> EngineFailure:
        failure = _STOPPED if self._fatal_error is None else stopped_by(self._fatal_error)
        kind = DeviceFailed if failure.error == DeviceFailed.code else EngineLost
        return kind(failure.message)
