"""Where the contexts of a model with windows or states get checkpoints, and which are kept.

Kept are the end of tools and system prompt, the last forks, the beginning of the last message, the
place where the next prompt is expected to part, the end of the last prompt and the end of the last
answer. Older ones are deleted from memory when the turn that follows them has ended, and from the
disk once the disk has the end of that turn. So are those of a turn whose last message was
rewritten.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import structlog

from domain.kv.checkpoints import CheckpointKind, Partings, PromptEnd
from domain.kv.contexts import Context
from domain.kv.hashing import BlockHash
from domain.kv.spec import LayerKind
from worker.cachestore.reports import Manifest
from worker.engine.mlx.kv.context_caches import ContextCaches, ContextStore
from worker.engine.mlx.kv.context_saver import ContextEnd, ContextSaver
from worker.engine.mlx.kv.row_opening import RowOpening
from worker.engine.mlx.kv.start_plan import LEFT_PARTS, StartPlan, StartPlanner, name_at
from worker.engine.ports import Admission, Finish


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
        progressed: Position of the last checkpoint on the way through the answer.
        pauses: Positions of the prompt at which a checkpoint is made, with the reason.
        ends: Checkpoints that it made or inherited; they are thinned at its end.
        replaced: Checkpoints that are deleted from the disk once it has the next one.
        last_message: Position at which the last message of its prompt begins; 0 if unknown.
        prompt_end: What the next prompt of the conversation is compared with.
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
    last_message: int = 0
    prompt_end: PromptEnd | None = None
    pending: dict[BlockHash, int] = field(default_factory=dict)


_log = structlog.get_logger(__name__)

#: Blocks between two checkpoints on the way through a long prompt or answer.
PROGRESS_BLOCKS = 8
#: Tokens that a sequence may be ahead of the answer that the client sees when it is stopped.
OVERSHOOT_TOKENS = 8
#: Checkpoints that a turn leaves: at the end of its prompt and of its answer.
ENDS_OF_A_TURN = 2
#: Checkpoints closer than this to another are not made.
APART_TOKENS_MIN = 16
#: Blocks of a last message from which on a parting one block before its end is expected, while
#: nothing is known of the client.
GUESSED_BLOCKS_MIN = 2
#: Checkpoints of which it is remembered why they were made.
KINDS_MAX = 10_000

#: Forks of a context that are kept, the last ones.
FORKS_KEPT = 2

#: Kinds of which a turn keeps one, and only behind the beginning of its last message.
_OF_THE_TURN = (CheckpointKind.PARTING, CheckpointKind.PROMPT)


class ContextEnds:
    """Makes and thins checkpoints. Belongs to the engine thread."""

    def __init__(
        self,
        store: ContextStore,
        planner: StartPlanner,
        saver: ContextSaver | None,
    ) -> None:
        self._store = store
        self._pool = store.pool
        self._spec = store.pool.spec
        self._planner = planner
        self._saver = saver
        self._progress_tokens = PROGRESS_BLOCKS * self._spec.block_tokens
        #: Why the checkpoints were made that this process knows, the oldest first.
        self._kinds: dict[BlockHash, CheckpointKind] = {}
        self._partings = Partings(self._spec.block_tokens)
        self._has_states = any(layer.kind is LayerKind.STATE for layer in self._spec.layers)

    def begin(
        self,
        sequence: TrackedSequence,
        token_ids: Sequence[int],
        plan: StartPlan,
        admission: Admission,
    ) -> None:
        """Set the pauses of a new sequence, and the checkpoints that it inherits.

        Args:
            token_ids: Its prompt without the last token, as the cache knows it.
            admission: Has the positions where messages begin.
        """
        if not self._spec.has_ends:
            return
        sequence.last_message = admission.last_message
        preferred = admission.checkpoints
        client = name_at(self._pool, token_ids, sequence.names, preferred[0]) if preferred else None
        asked = len(token_ids) - admission.first_index
        end = self._partings.add(
            token_ids[:asked],
            sequence.names,
            last_message=sequence.last_message,
            client=client,
            agent=admission.agent,
        )
        sequence.prompt_end = end
        forks = [plan.diverged_at] if plan.diverged_at else []
        if end.rewrites is not None:
            forks.append(end.rewrites[1])
        sequence.pauses = self._pauses(sequence, plan.tokens, preferred, forks)
        if _continues(plan):
            sequence.ends = self._inherited(token_ids, plan, preferred)

    def forget_prompts(self) -> None:
        """Forget the prompts with which new ones are compared; from any thread."""
        # A prompt that is compared meanwhile goes to the old object, which is dropped.
        self._partings = self._partings.without_prompts()

    def _pauses(
        self,
        sequence: TrackedSequence,
        restored: int,
        preferred: Sequence[int],
        forks: Sequence[int],
    ) -> dict[int, CheckpointKind]:
        """Return the positions of a prompt at which a checkpoint is made, in order."""
        prompt_end, block = sequence.prompt_tokens - 1, self._spec.block_tokens
        step, last = self._progress_tokens, prompt_end - APART_TOKENS_MIN
        pauses = dict.fromkeys(range(step, prompt_end, step), CheckpointKind.PROGRESS)
        pauses |= dict.fromkeys(preferred, CheckpointKind.SYSTEM)
        kept = {
            position: kind
            for position, kind in pauses.items()
            if restored < position <= last
            and (kind is CheckpointKind.SYSTEM or position - restored >= step // 2)
        }
        parting = self._parting(sequence, prompt_end)
        for position, kind, apart in (
            *((fork, CheckpointKind.FORK, block) for fork in forks),
            (sequence.last_message, CheckpointKind.MESSAGE, APART_TOKENS_MIN),
            (parting, CheckpointKind.PARTING, APART_TOKENS_MIN),
        ):
            known = [restored, *(at for at in kept if kept[at] is not CheckpointKind.PROGRESS)]
            is_near = any(0 <= position - at < apart for at in known)
            if restored < position <= last and not is_near:
                kept[position] = kind
        is_near = prompt_end - parting <= block and kept.get(parting) is CheckpointKind.PARTING
        end = sequence.prompt_end
        if not (is_near and end is not None and self._partings.distance(end.client)):
            kept[prompt_end] = CheckpointKind.PROMPT  # else a repetition computes less than a block
        return dict(sorted(kept.items()))

    def _parting(self, sequence: TrackedSequence, prompt_end: int) -> int:
        """Return where the next prompt will part from this one; 0 where it probably will not."""
        end = sequence.prompt_end
        assert end is not None, "the prompt was compared"
        distance = self._partings.distance(end.client)
        if distance is None:
            distance = self._spec.block_tokens
            known = sequence.last_message or prompt_end
            if prompt_end - known < GUESSED_BLOCKS_MIN * distance:
                return 0
        position = end.stop - max(distance, APART_TOKENS_MIN)
        return position if distance and position > sequence.last_message else 0

    def advance(self, sequence: TrackedSequence, caches: Callable[[], ContextCaches]) -> None:
        """Make a checkpoint after the present tokens of a sequence if it is time."""
        if not self._spec.has_ends:
            return
        tokens = len(sequence.context.token_ids)
        if tokens < sequence.prompt_tokens:
            kind = sequence.pauses.pop(tokens, None)
            if kind is not None:
                self._make(sequence, caches(), tokens, kind)
            return
        step = self._spec.block_tokens if self._has_states else self._progress_tokens
        # Drafted tokens may step over the position itself.
        position = tokens - tokens % step
        if position <= max(sequence.prompt_tokens, sequence.progressed):
            return
        sequence.progressed = position
        found = caches()
        if found.can_end_at(position, tokens):
            # Snapshots of states are frequent: not all of them are written.
            saves = position % self._progress_tokens == 0
            self._make(sequence, found, position, CheckpointKind.PROGRESS, saves=saves)

    def end(
        self,
        sequence: TrackedSequence,
        caches: ContextCaches,
        finish: Finish | None,
        on_saved: Callable[[Manifest], None] | None,
    ) -> None:
        """Save the end of a parked sequence as a checkpoint, and thin older ones.

        The parked caches are the checkpoint in memory; the disk gets a copy.
        """
        context, tokens = sequence.context, len(sequence.context.token_ids)
        position = self._last_position(sequence, tokens, finish)
        is_live = self._spec.has_ends and caches.can_end_at(position, tokens)
        if is_live:
            self._save_progress(sequence)
            name = self._pool.checkpoint_name(context, position).name
            self._record(sequence, EndRecord(name, position, CheckpointKind.ANSWER))
            self._thin(sequence)
        elif self._spec.has_ends:
            position = tokens - tokens % self._spec.block_tokens
        self._save(sequence, ContextEnd(position=position, is_live=is_live, on_saved=on_saved))

    def _save(self, sequence: TrackedSequence, end: ContextEnd) -> None:
        """Save an end; what it replaces is deleted from the disk after that."""
        if self._saver is None:
            return
        if end.is_live or end.checkpoint is not None:
            end.replaces, sequence.replaced = tuple(sequence.replaced), []
        self._saver.add_end(sequence.context, end)

    def _last_position(self, sequence: TrackedSequence, tokens: int, finish: Finish | None) -> int:
        """Return a position just before the end: before the end mark, or before the overshoot."""
        if self._has_states or not self._spec.has_ends:
            return tokens
        back = {Finish.END: 1, Finish.LENGTH: 0, None: OVERSHOOT_TOKENS}[finish]
        answer = tokens - sequence.prompt_tokens
        return tokens - back if answer > back else tokens

    def _make(
        self,
        sequence: TrackedSequence,
        caches: ContextCaches,
        position: int,
        kind: CheckpointKind,
        *,
        saves: bool = True,
    ) -> None:
        context, held = sequence.context, len(sequence.context.token_ids)
        checkpoint = self._store.add_checkpoint(
            context, kind, position, lambda: caches.ends_at(position, held)
        )
        if checkpoint is None:
            _log.info("checkpoint_skipped", position=position)
            return
        progress = [one for one in sequence.ends if one.kind is CheckpointKind.PROGRESS]
        # A state cannot be trimmed: the last checkpoint but one stays, in case a stop text ends
        # the answer a few tokens before the newest.
        self._delete(sequence, progress[: -1 if self._has_states else None])
        if saves:
            self._save(sequence, ContextEnd(position=position, checkpoint=checkpoint))
        self._record(sequence, EndRecord(checkpoint.name, position, kind))

    def _record(self, sequence: TrackedSequence, end: EndRecord) -> None:
        """Remember a new checkpoint, and why it was made."""
        sequence.ends.append(end)
        self._kinds[end.name] = end.kind
        if len(self._kinds) > KINDS_MAX:
            del self._kinds[next(iter(self._kinds))]

    def _save_progress(self, sequence: TrackedSequence) -> None:
        """Save the last snapshot of a state on the way, which ``advance`` may not have saved."""
        for one in sequence.ends:
            checkpoint = self._pool.checkpoints.get(one.name)
            if one.kind is not CheckpointKind.PROGRESS or checkpoint is None:
                continue
            if not checkpoint.is_saved and not checkpoint.users:
                self._save(sequence, ContextEnd(position=one.position, checkpoint=checkpoint))

    def _thin(self, sequence: TrackedSequence) -> None:
        """Delete the checkpoints of earlier turns."""
        newest = {one.kind: one for one in sequence.ends}
        for kind in _OF_THE_TURN:
            if kind in newest and newest[kind].position <= sequence.last_message:
                del newest[kind]
        # Without the one at the end of the prompt, the next prompt will part before the answer.
        if not self._has_states or CheckpointKind.PROMPT not in newest:
            newest.pop(CheckpointKind.PROGRESS, None)
        forks = [one for one in sequence.ends if one.kind is CheckpointKind.FORK]
        shared = [one for one in sequence.ends if one.kind is CheckpointKind.SYSTEM] or forks[:1]
        before = [one for one in sequence.ends if one.position <= sequence.last_message]
        last = max(before, key=lambda one: one.position, default=None)
        kept = {*newest.values(), *shared, *forks[-FORKS_KEPT:], *((last,) if last else ())}
        names = {one.name for one in kept}
        self._delete(sequence, [one for one in sequence.ends if one.name not in names])
        if sequence.prompt_end is not None:
            self._abandon(sequence, sequence.prompt_end)

    def _abandon(self, sequence: TrackedSequence, end: PromptEnd) -> None:
        """Delete the checkpoints of a turn whose last message this one has rewritten."""
        for name in end.abandoned():
            checkpoint = self._pool.checkpoints.get(name)
            if checkpoint is not None and (checkpoint.users or checkpoint.busy):
                continue
            if checkpoint is not None:
                self._pool.free(checkpoint)
            sequence.replaced.append(name)
        end.ends = {one.position: one.name for one in sequence.ends}

    def _delete(self, sequence: TrackedSequence, old: Sequence[EndRecord]) -> None:
        """Delete checkpoints from memory, and from the disk once it has a later one."""
        for one in old:
            sequence.ends.remove(one)
            checkpoint = self._pool.checkpoints.get(one.name)
            if checkpoint is not None:
                self._pool.disown(sequence.context, checkpoint)
                if checkpoint.contexts:
                    continue
                if self._saver is not None:
                    self._saver.cancel(sequence.context, checkpoint)
                if not checkpoint.users:
                    self._pool.free(checkpoint)
            sequence.replaced.append(one.name)

    def _inherited(
        self, token_ids: Sequence[int], plan: StartPlan, preferred: Sequence[int]
    ) -> list[EndRecord]:
        """Return the checkpoints of the restored beginning, in order.

        The disk does not store why a checkpoint was made. Of those that an earlier process made,
        the last two are taken for the end of a prompt and of its answer.
        """
        found = sorted(self._planner.ends_on_path(token_ids, plan.names, plan.tokens))
        records = []
        for at, (position, name) in enumerate(found):
            kind = self._kinds.get(name)
            if position in preferred:
                kind = CheckpointKind.SYSTEM
            elif kind is None and at >= len(found) - ENDS_OF_A_TURN:
                kind = CheckpointKind.ANSWER
            elif kind is None:
                parts = self._planner.parts_on_disk(plan.names, position)
                kind = CheckpointKind.FORK if parts else CheckpointKind.PROGRESS
            records.append(EndRecord(name, position, kind))
        return records


def _continues(plan: StartPlan) -> bool:
    """Return whether a sequence goes on where one has ended, and no other sequence does."""
    last = plan.pieces[-1] if plan.pieces else None
    if last is None or last.context is None or last.context is plan.adopted:
        return True
    left = len(last.context.token_ids) - last.stop
    return not last.context.is_running and left * LEFT_PARTS <= len(last.context.token_ids)
