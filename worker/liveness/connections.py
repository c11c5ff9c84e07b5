"""What a worker is connected to."""

from __future__ import annotations

from dataclasses import dataclass

from domain.usecases.engine_control import EngineControls
from ops.adapters.event_log.sql_event_log import SqlEventLog
from ops.adapters.redis.client import BrokerClient, Keys
from worker.control.swap_follower import SwapFollower
from worker.liveness.worker_metrics import WorkerMetrics
from worker.recording.worker_event_recorder import WorkerEventRecorder


@dataclass(frozen=True, slots=True, kw_only=True)
class Connections:
    """The log and the broker, and the names under which this worker is known there."""

    log: SqlEventLog
    recorder: WorkerEventRecorder
    client: BrokerClient
    keys: Keys
    broker_id: str
    follower: SwapFollower
    controls: EngineControls
    metrics: WorkerMetrics
