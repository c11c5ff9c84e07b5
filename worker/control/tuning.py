"""Brings what the log wants to a worker, and applies what operators have changed."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass

from domain.engine.control import AdmissionState, EngineValues, in_force
from domain.engine.operate import EngineControls
from domain.engine.workers import ControlTopic
from domain.job.stranded import JobReconciler
from ops.broker.client import BrokerClient, Keys
from ops.broker.control import ControlListener
from ops.broker.dramatiq_queue import BlockingRedisBroker, DramatiqJobQueue
from ops.broker.worker_requests import BlockAnswers
from ops.log.sql_event_log import SqlEventLog
from ops.observe.logs import Logger
from worker.engine.engine import BatchEngine
from worker.turn_scheduler import (
    ActiveJobs,
    TurnScheduler,
    cancel_if_recorded,
    cancel_where_recorded,
)

#: Seconds between two looks at the log; a signal makes the worker look at once.
LOOK_S = 1.0
#: Jobs handed to the engine beyond its batch, so that a free place in the batch is filled at once.
SLOTS_AHEAD = 2


class WorkerTuning:
    """What operators have changed, as this worker has applied it.

    Args:
        settings: Values where operators have changed none.
    """

    def __init__(
        self,
        controls: EngineControls,
        settings: EngineValues,
        *,
        engine: BatchEngine,
        turns: TurnScheduler,
        queue: BlockingRedisBroker,
        logger: Logger,
    ) -> None:
        self._controls = controls
        self._settings = settings
        self._engine = engine
        self._turns = turns
        self._queue = queue
        self._logger = logger
        self.control = controls.current()
        self._apply()

    @property
    def values(self) -> EngineValues:
        """The values in force."""
        return in_force(self.control.tuned, self._settings)

    def apply(self) -> None:
        """Apply what is new in the log.

        Raises:
            LogUnavailable: The log cannot be read; everything stays as it is.
        """
        control = self._controls.current()
        if control != self.control:
            self.control = control
            self._apply()

    def _apply(self) -> None:
        admission, values = self.control.admission, self.values
        slots = values.max_batch_size + SLOTS_AHEAD
        self._engine.tune(values)
        self._queue.shared_unacked_max = slots
        self._turns.set_paused(paused=admission is not AdmissionState.OPEN)
        self._turns.set_slots(slots)
        if self.control.version:
            self._logger.info("engine_control", admission=admission.value, **asdict(values))


@dataclass(frozen=True, slots=True, kw_only=True)
class LogWatch:
    """The readers of the log in a worker that has a model.

    Attributes:
        follow_model: Ends the worker if the log wants another model.
    """

    log: SqlEventLog
    client: BrokerClient
    keys: Keys
    active: ActiveJobs
    follow_model: Callable[[], None]
    blocks: BlockAnswers

    def reconciliation(self, restore: Callable[[], None]) -> Callable[[], None]:
        """Return the action that recovers lost notifications and queue entries from the log.

        Args:
            restore: Lets an emptied broker know what the workers have in hand.
        """
        reconciler = JobReconciler(
            views=self.log.views, queue=DramatiqJobQueue(self.client, self.keys)
        )

        def recover() -> None:
            self.follow_model()
            cancel_where_recorded(self.active, self.log)
            restore()
            reconciler.reconcile()

        return recover

    def listener(
        self, *, reconcile: Callable[[], None], tune: Callable[[], None]
    ) -> ControlListener:
        """Return the thread that receives notifications; it recovers missed ones.

        Args:
            reconcile: Called after each (re)connect.
            tune: Called after each (re)connect, and when an operator has changed the engine.
        """

        def recover() -> None:
            reconcile()
            tune()
            cancel_where_recorded(self.active, self.log)

        return ControlListener(
            self.client,
            self.keys,
            on_cancel=lambda job_id: cancel_if_recorded(job_id, self.active, self.log),
            on_listening=recover,
            on_blocks=self.blocks.receive,
            on_topic={ControlTopic.MODELS: self.follow_model, ControlTopic.ENGINE: tune},
        )
