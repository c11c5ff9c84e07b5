"""What the prefix cache knows of a running sequence."""

from __future__ import annotations

from dataclasses import dataclass, field

from domain.kv.checkpoints import CheckpointKind
from domain.kv.contexts import Context
from domain.kv.hashing import BlockHash
from worker.engine.mlx.kv.row_opening import RowOpening


@dataclass(frozen=True, slots=True)
class EndRecord:
    """A checkpoint of a context, in memory or on the disk."""

    name: BlockHash
    position: int
    kind: CheckpointKind


@dataclass(slots=True, kw_only=True)
class TrackedSequence:
    """A sequence in the batch.

    Attributes:
        opening: How its caches are prepared; ``None`` once they are.
        prompt_tokens: Tokens of the prompt, restored ones included.
        names: Hashes of the whole blocks of its prompt.
        label: Job id, for reports.
        started_s: Clock time of its start.
        progressed: Position of the last checkpoint on the way through the answer.
        pauses: Positions of the prompt at which a checkpoint is made, with the reason.
        ends: Checkpoints that it made or inherited; they are thinned at its end.
        replaced: Checkpoints that are deleted from the disk once it has the next one.
        pending: Prefixes of its prompt that other prompts may wait for: names, with their ends.
    """

    context: Context
    opening: RowOpening | None
    prompt_tokens: int
    names: tuple[BlockHash, ...]
    label: str = ""
    started_s: float = 0.0
    progressed: int = 0
    pauses: dict[int, CheckpointKind] = field(default_factory=dict)
    ends: list[EndRecord] = field(default_factory=list)
    replaced: list[BlockHash] = field(default_factory=list)
    pending: dict[BlockHash, int] = field(default_factory=dict)
