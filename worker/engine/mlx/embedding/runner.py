"""A ``ModelRunner`` that computes vectors between the steps of its batch."""

from __future__ import annotations

from typing import Final

from domain.chat.items import Failed
from domain.values import WaitingFor
from worker.engine.mlx.embedding.lane import EmbeddingLane
from worker.engine.ports import Admission, Admitted, LoadedModel, ModelRunner, StepResult

#: Part of the longest pause of a stream that a slice of vectors may take.
GAP_SHARE: Final = 0.25
#: Length of a slice where streams may pause for any time, and while none runs, in seconds.
IDLE_SLICE_S: Final = 0.05


class SharedRunner:
    """``ModelRunner`` with a lane of vectors beside the batch.

    Args:
        runner: Runs the batch.
        lane: Computes the vectors.
        gap_max_s: Longest pause of a stream, in seconds; 0 for any.
    """

    def __init__(self, runner: ModelRunner, lane: EmbeddingLane, *, gap_max_s: float) -> None:
        self._runner = runner
        self._lane = lane
        self._gap_max_s = gap_max_s

    def load(self) -> LoadedModel:
        """Load the model of the batch."""
        return self._runner.load()

    def must_wait(self, admission: Admission) -> WaitingFor | None:
        """See ``ModelRunner.must_wait``."""
        return self._runner.must_wait(admission)

    def insert(self, admission: Admission) -> Admitted | None:
        """See ``ModelRunner.insert``."""
        return self._runner.insert(admission)

    def step(self) -> StepResult:
        """Compute a slice of vectors, if any wait, and then a step of the batch.

        The tokens of the step before are on their way to their readers meanwhile.
        """
        self._lane.run_slice(GAP_SHARE * self._gap_max_s or IDLE_SLICE_S)
        return self._runner.step()

    def set_gap(self, gap_max_s: float) -> None:
        """Set the longest pause of a stream, in seconds; 0 for any."""
        self._gap_max_s = gap_max_s
        self._runner.set_gap(gap_max_s)

    def background(self) -> bool:
        """Compute vectors and do deferred work; return whether some is left."""
        is_left = self._runner.background()
        return self._lane.run_slice(IDLE_SLICE_S) or is_left

    def remove(self, uid: int) -> None:
        """See ``ModelRunner.remove``."""
        self._runner.remove(uid)

    def reset(self) -> None:
        """See ``ModelRunner.reset``."""
        self._runner.reset()

    def abandon(self, failure: Failed, /) -> None:
        """End the requests for vectors; see ``ModelRunner.abandon``."""
        self._lane.abandon(failure)
        self._runner.abandon(failure)

    def close(self) -> None:
        """End the requests for vectors, and free the memory of both models."""
        self._lane.close()
        self._runner.close()
