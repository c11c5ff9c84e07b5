"""Brings what the log wants to a worker: by notifications, and at an interval."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from domain.job.ports import ControlTopic
from domain.usecases.jobs.reconcile import JobReconciler
from ops.adapters.event_log.sql_event_log import SqlEventLog
from ops.adapters.redis.block_places import BlockAnswers
from ops.adapters.redis.client import BrokerClient, Keys
from ops.adapters.redis.control import ControlListener
from ops.adapters.redis.dramatiq_queue import DramatiqJobQueue
from worker.active_jobs import ActiveJobs, cancel_if_recorded, cancel_where_recorded


@dataclass(frozen=True, slots=True, kw_only=True)
class LogWatch:
    """The readers of the log in a worker that has a model.

    Attributes:
        client: Connection to the broker.
        keys: Key names.
        active: The jobs of this worker.
        follow_model: Ends the worker if the log wants another model.
        blocks: Answers requests about the blocks of this worker.
    """

    log: SqlEventLog
    client: BrokerClient
    keys: Keys
    active: ActiveJobs
    follow_model: Callable[[], None]
    blocks: BlockAnswers

    def reconciliation(self) -> Callable[[], None]:
        """Return the action that recovers lost notifications and queue entries from the log."""
        reconciler = JobReconciler(
            views=self.log.views, queue=DramatiqJobQueue(self.client, self.keys)
        )

        def recover() -> None:
            self.follow_model()
            cancel_where_recorded(self.active, self.log)
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
