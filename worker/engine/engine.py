"""The thread that owns the model: schedule, run, commit, over and over."""

from __future__ import annotations

import threading
from collections.abc import Callable
from itertools import count
from queue import Empty, SimpleQueue

import structlog

from domain.chat.generation import GenerationTask, PreparedPrompt
from domain.chat.items import Failed, Progress
from domain.chat.ports import GenerationHandle
from domain.chat.request import ChatRequest
from domain.errors import Draining, EngineFailure
from domain.job.ports import ItemSink
from domain.ports import Clock
from domain.values import ModelCard, StopReason
from worker.engine.emitter import Advanced, Emitter, Ended, Released, Tokens
from worker.engine.inbox import Cancel, Message, Remove, Stop, SubmitSequence
from worker.engine.ports import Admission, LoadedModel, ModelRunner, StepResult
from worker.engine.preparation import constraint_of, prepare
from worker.engine.scheduling.waiting_queue import WaitingQueue
from worker.engine.sequence import Handle, Sequence, SequenceTimes
from worker.engine.text_assembler import assembler_for

_log = structlog.get_logger(__name__)

#: What ``close`` leaves the emitter to bring the last items out.
LAST_ITEMS_S = 5.0
#: What ``close`` leaves the engine thread to finish its step.
LAST_STEP_S = 30.0

_STOPPED = Failed(error=Draining.code, message="the worker stopped", retryable=True)


class BatchEngine:
    """``domain.chat.ports.InferenceEngine`` with continuous batching.

    The engine thread alone touches the runner; the emitter thread alone touches text and the sink;
    callers' threads only render prompts and put messages into the inbox. A generation moves one
    way: waiting, running, ended.

    Args:
        runner_factory: Makes the runner, on the engine thread.
        sink: Where items go.
        clock: For timings and retries.
        max_batch_size: Generations that run at once; of the others the shortest is next, within the
            bounds of ``schedule.FairLine``.
        stream_interval_s: Between two publishes of items; the first and the last never wait.
        batch_window_s: How long generations that arrive together are held for others; one that
            arrives alone is not.
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
    ) -> None:
        assert max_batch_size >= 1, "an engine without a place never answers"
        self._runner_factory = runner_factory
        self._clock = clock
        self._max_batch_size = max_batch_size
        self._inbox: SimpleQueue[Message] = SimpleQueue()
        self._emitter = Emitter(
            sink,
            clock,
            self._ask_removal,
            self._ended,
            self._emitter_died,
            interval_s=stream_interval_s,
        )
        self._thread = threading.Thread(target=self._run, name="engine", daemon=True)
        self._loaded = threading.Event()
        self._model: LoadedModel | None = None
        self._cause_of_death: BaseException | None = None
        self._live_lock = threading.Lock()
        self._live: set[Sequence] = set()
        self._idle = threading.Condition(self._live_lock)
        self._accepting = True
        self._arrivals = count()
        # Below: the engine thread's own.
        self._waiting: WaitingQueue[Sequence] = WaitingQueue(batch_window_s)
        self._running: dict[int, Sequence] = {}
        self._stopped = False

    # -- life cycle ------------------------------------------------------------------------------

    def start(self) -> None:
        """Load the model and start serving; returns when it is ready.

        Raises:
            ModelLoadFailed: Saying what was tried.
            EngineFailure: Loading failed in a way nobody foresaw.
        """
        self._emitter.start()
        self._thread.start()
        self._loaded.wait()
        if self._cause_of_death is not None:
            self._thread.join(LAST_STEP_S)
            self._emitter.close(LAST_ITEMS_S)
            if isinstance(self._cause_of_death, EngineFailure):
                raise self._cause_of_death
            msg = f"the model could not be loaded: {self._cause_of_death}"
            raise EngineFailure(msg) from self._cause_of_death

    def set_batch_window(self, window_s: float) -> None:
        """Change how long generations that arrive together are held, from now on."""
        assert window_s >= 0, "a window has a length"
        self._waiting.window.window_s = window_s

    def is_alive(self) -> bool:
        """Whether both threads run and generations can be taken."""
        return self._thread.is_alive() and self._emitter.is_alive()

    def close(self, drain_s: float) -> None:
        """Take no more work, let running generations finish for ``drain_s``, then end both threads.

        What is unfinished then fails retryably: the next worker continues it.
        """
        with self._live_lock:
            self._accepting = False
            self._idle.wait_for(lambda: not self._live, drain_s)
        self._inbox.put(Stop())
        self._thread.join(LAST_STEP_S)
        if not self._emitter.close(LAST_ITEMS_S):
            _log.warning("last_items_lost")
            self._abandon(_STOPPED)

    # -- domain.chat.ports.InferenceEngine ---------------------------------------------------

    def card(self) -> ModelCard:
        """Return what is loaded."""
        return self._require_model().card

    def prepare(self, request: ChatRequest) -> PreparedPrompt:
        """Render and tokenise a request; safe to call from many threads at once."""
        return prepare(request, self._require_model())

    def submit(self, task: GenerationTask) -> GenerationHandle:
        """Hand a task over; it joins the running batch as soon as there is room."""
        sequence = self._sequence(task)
        is_over = sequence.assembler.is_over
        reason = sequence.natural_stop_reason() if is_over else sequence.limit_reached()
        with self._live_lock:
            if not self._accepting:
                raise self._unfit()
            self._live.add(sequence)
            if reason is None:
                self._inbox.put(SubmitSequence(sequence))
        if reason is not None:
            # The attempt before had said everything but the end.
            self._emitter.put(Ended(sequence, self._clock.monotonic(), reason))
        return sequence.handle

    def _sequence(self, task: GenerationTask) -> Sequence:
        model = self._require_model()
        sequence = Sequence(
            task=task,
            assembler=assembler_for(model, task),
            handle=Handle(
                lambda: self._inbox.put(Cancel(sequence)),
                lambda: self._emitter.put(Released(sequence)),
            ),
            times=SequenceTimes(self._clock.monotonic()),
            admission=Admission(
                tokens=(*task.prompt.tokens, *task.emitted),
                first_index=len(task.emitted),
                max_new_tokens=task.prompt.max_tokens - len(task.emitted),
                sampling=task.prompt.sampling,
                label=task.job_id,
                arrival=next(self._arrivals),
                constraint=constraint_of(model, task),
                logprobs=task.prompt.logprobs,
            ),
            context_length=model.card.context_length,
        )
        sequence.prime()
        return sequence

    # -- the engine thread -----------------------------------------------------------------------

    def _run(self) -> None:
        failure = _STOPPED
        try:
            runner = self._runner_factory()
            self._model = runner.load()
            self._loaded.set()
            try:
                self._serve(runner)
            finally:
                runner.close()
        except BaseException as error:  # noqa: BLE001 - the last words of a thread nobody joins
            self._cause_of_death = error
            failure = _died(error)
            if self._loaded.is_set():
                _log.critical("engine_died", exc_info=error)
        self._end_all(failure)
        self._loaded.set()

    def _serve(self, runner: ModelRunner) -> None:
        while True:
            self._receive(runner)
            if self._stopped:
                return
            self._schedule(runner)
            if self._running:
                self._emitter.wait_for_room()
                try:
                    step = runner.step()
                except Exception as error:  # noqa: BLE001 - a batch may fail, the engine goes on
                    _log.exception("step_failed", running=len(self._running))
                    self._fail_running(error)
                    runner.reset()
                else:
                    self._commit(step)

    def _receive(self, runner: ModelRunner) -> None:
        """Take what came in; wait for something if there is nothing to do."""
        wait_s: float | None = 0.0
        if not self._running:
            wait_s = self._waiting.wait_s(self._clock.monotonic())
        while wait_s != 0 or not self._inbox.empty():
            try:
                message = self._inbox.get(block=wait_s != 0, timeout=wait_s)
            except Empty:
                return
            wait_s = 0.0
            self._take(message, runner)

    def _take(self, message: Message, runner: ModelRunner) -> None:
        match message:
            case SubmitSequence(sequence):
                cost = len(sequence.admission.tokens) - sequence.task.prompt.cached_tokens
                self._waiting.add(sequence, cost=cost, at=sequence.times.submitted)
                self._tell_place(sequence)
            case Cancel(sequence):
                self._leave(sequence, runner)
                self._emitter.put(Ended(sequence, self._clock.monotonic()))
            case Remove(sequence):
                self._leave(sequence, runner)
            case Stop():
                self._stopped = True

    def _schedule(self, runner: ModelRunner) -> None:
        """Let those join whose turn it is, while there is room."""
        now = self._clock.monotonic()
        self._waiting.admit(
            now,
            self._max_batch_size - len(self._running),
            must_wait=lambda one: runner.must_wait(one.admission),
            join=lambda one: self._join(one, runner, now),
        )

    def _join(self, sequence: Sequence, runner: ModelRunner, now: float) -> bool:
        try:
            admitted = runner.insert(sequence.admission)
        except Exception as error:  # noqa: BLE001 - concerns this generation alone
            _log.exception("admission_failed", job=sequence.task.job_id)
            self._fail(sequence, error, retryable=False)
            return True
        if admitted is None:
            return False
        if sequence.times.admitted is None:
            sequence.times.admitted = now
            prompt_tokens = len(sequence.task.prompt.tokens)
            sequence.cached_tokens = min(admitted.cached_tokens, prompt_tokens)
            if admitted.block_tokens:
                sequence.kept_tokens = prompt_tokens - prompt_tokens % admitted.block_tokens
        sequence.uid = admitted.uid
        self._running[admitted.uid] = sequence
        return True

    def _commit(self, step: StepResult) -> None:
        """Hand the step's tokens over and let the finished leave."""
        running, now = self._running, self._clock.monotonic()
        tokens = [(running[uid], token, finish) for uid, token, finish in step.tokens]
        likelihoods = {running[uid]: likely for uid, likely in step.likelihoods.items()}
        for uid, token, finish in step.tokens:
            running[uid].decoded.append(token)
            if finish is not None:
                del running[uid]
        if tokens:
            self._emitter.put(Tokens(now, tokens, likelihoods))
        for uid, done, total in step.prefilled:
            self._tell_prefill(running.get(uid), done, total, now)
        for fault in step.faults:
            self._fail(running.pop(fault.uid), fault.error, retryable=fault.retryable)
        for uid in step.preempted:
            sequence = running.pop(uid)
            sequence.prepare_resume()
            self._waiting.put_back(sequence)

    def _tell_place(self, sequence: Sequence) -> None:
        ahead = len(self._running) + len(self._waiting) - self._max_batch_size
        if ahead > 0:
            self._emitter.put(Advanced(sequence, Progress(phase="queued", done=0, total=ahead)))

    def _tell_prefill(self, sequence: Sequence | None, done: int, total: int, now: float) -> None:
        if sequence is None:
            return
        if sequence.times.prefilled is not None:
            return
        if done >= total:
            sequence.times.prefilled = now
        else:
            progress = Progress(phase="prefill", done=done, total=total)
            self._emitter.put(Advanced(sequence, progress))

    def _leave(self, sequence: Sequence, runner: ModelRunner) -> None:
        """Free the place of a generation, wherever it is."""
        if sequence.uid is not None and self._running.pop(sequence.uid, None) is not None:
            runner.remove(sequence.uid)
        else:
            self._waiting.remove(sequence)

    def _fail(self, sequence: Sequence, error: BaseException, *, retryable: bool) -> None:
        message = f"the generation failed: {type(error).__name__}: {error}"
        failure = Failed(error=EngineFailure.code, message=message, retryable=retryable)
        now = self._clock.monotonic()
        self._emitter.put(Ended(sequence, now, StopReason.END_TURN, failure))

    def _fail_running(self, error: BaseException) -> None:
        """Give back every generation of a broken batch; their next attempts continue them."""
        for sequence in self._running.values():
            self._fail(sequence, error, retryable=True)
        self._running.clear()

    def _end_all(self, failure: Failed) -> None:
        """Give every generation back; nothing is taken after this."""
        with self._live_lock:
            self._accepting = False
        arrived = []
        while not self._inbox.empty():
            message = self._inbox.get()
            if isinstance(message, SubmitSequence):
                arrived.append(message.sequence)
        now = self._clock.monotonic()
        for sequence in (*self._running.values(), *self._waiting.clear(), *arrived):
            self._emitter.put(Ended(sequence, now, StopReason.END_TURN, failure))
        self._running.clear()

    # -- called from other threads ---------------------------------------------------------------

    def _ask_removal(self, sequence: Sequence) -> None:
        self._inbox.put(Remove(sequence))

    def _ended(self, sequence: Sequence) -> None:
        with self._live_lock:
            self._live.discard(sequence)
            self._idle.notify_all()

    def _emitter_died(self, error: BaseException) -> None:
        self._cause_of_death = error
        with self._live_lock:
            self._accepting = False
        self._inbox.put(Stop())
        self._abandon(_died(error))

    def _abandon(self, failure: Failed) -> None:
        """Free every waiter when no thread is left to do it."""
        with self._live_lock:
            left, self._live = self._live, set()
            self._idle.notify_all()
        now = self._clock.monotonic()
        for sequence in left:
            sequence.handle.resolve(sequence.outcome(now, StopReason.END_TURN, failure))

    def _require_model(self) -> LoadedModel:
        if self._model is None or self._cause_of_death is not None:
            raise self._unfit()
        return self._model

    def _unfit(self) -> EngineFailure:
        failure = _STOPPED if self._cause_of_death is None else _died(self._cause_of_death)
        error = EngineFailure(failure.message)
        error.retryable = True
        return error


def _died(cause: BaseException) -> Failed:
    message = f"the engine has stopped: {type(cause).__name__}: {cause}"
    return Failed(error=EngineFailure.code, message=message, retryable=True)
