"""Where the next prompt of a conversation will part from the last one. Pure.

Many clients rewrite the end of their last message: a reminder stands there for one turn, and the
next prompt parts from this one where it begins. Seen from the end of the prompt, that is nearly the
same place in each turn of a client. So the distances of the last partings show where to make a
checkpoint, from which windows and states can go on.
"""

from __future__ import annotations

from array import array
from collections import OrderedDict, deque
from collections.abc import Sequence
from dataclasses import dataclass, field

from domain.kv.hashing import BlockHash, common_tokens

#: Tokens at the end of a prompt that are compared with the next one.
COMPARED_TOKENS = 8192
#: Prompts that wait for the next one, and clients whose partings are remembered.
PROMPTS_MAX = 256
CLIENTS_MAX = 64
#: Partings of a client that are remembered.
PARTINGS_MAX = 8
#: Prompts of a client without a parting after which none is expected.
UNPARTED_MAX = 4


@dataclass(slots=True, eq=False, kw_only=True)
class PromptEnd:
    """The end of a prompt, with which the next one is compared.

    Attributes:
        parent: Name of the block before ``tokens``.
        start: Number of tokens before ``tokens``.
        tokens: The last tokens of the prompt.
        last_message: Position at which its last message begins; 0 if that is not known.
        client: Name of its tools and system prompt.
        is_first: Whether no prompt before it is known.
        is_continued: Whether a prompt has begun with all of it.
        rewrites: The prompt whose last message this one has otherwise, and the first other token.
        ends: Names of the checkpoints that its turn has left, by position.
    """

    parent: BlockHash | None
    start: int
    tokens: array[int]
    last_message: int
    client: BlockHash | None
    is_first: bool = True
    is_continued: bool = False
    rewrites: tuple[PromptEnd, int] | None = None
    ends: dict[int, BlockHash] = field(default_factory=dict)

    @property
    def stop(self) -> int:
        """Length of the prompt."""
        return self.start + len(self.tokens)

    def abandoned(self) -> list[BlockHash]:
        """Return the checkpoints behind the parting that no prompt is expected to start from.

        The ends of a conversation's first turn stay for one turn more: a prompt that has much of
        its message may be that of another conversation.
        """
        found: list[BlockHash] = []
        before = self.rewrites
        if before is not None and not before[0].is_first:
            found += before[0].unused_after(before[1])
        earlier = None if before is None else before[0].rewrites
        if earlier is not None and earlier[0].is_first:
            found += earlier[0].unused_after(earlier[1])
        return found

    def unused_after(self, position: int) -> list[BlockHash]:
        """Return the checkpoints after ``position`` unless a prompt has gone on from them."""
        if self.is_continued:
            return []
        return [name for at, name in self.ends.items() if at > position]


class Partings:
    """The ends of the last prompts, and where the prompts after them parted. Not thread-safe.

    Args:
        block_tokens: Tokens of a block.
    """

    def __init__(self, block_tokens: int) -> None:
        self._size = block_tokens
        self._prompts: OrderedDict[PromptEnd, None] = OrderedDict()
        self._by_parent: dict[BlockHash | None, list[PromptEnd]] = {}
        #: Of each client: tokens between partings and the ends of the prompts; 0 for none.
        self._distances: OrderedDict[BlockHash | None, deque[int]] = OrderedDict()

    def __len__(self) -> int:
        return len(self._prompts)

    def add(
        self,
        prompt: Sequence[int],
        names: Sequence[BlockHash],
        *,
        last_message: int = 0,
        client: BlockHash | None = None,
    ) -> PromptEnd:
        """Compare a prompt with those before it, and remember it for the next one.

        Args:
            prompt: Its tokens.
            names: Hashes of its first whole blocks, all but perhaps the last one.
            last_message: Position at which its last message begins; 0 if that is not known.
            client: Name of its tools and system prompt.

        Returns:
            Its end; of a repeated prompt that of the first time.
        """
        before, common = self._before(prompt, names)
        if before is not None and common == before.stop == len(prompt):
            self._prompts.move_to_end(before)
            return before
        block = min(max(0, len(prompt) - COMPARED_TOKENS) // self._size, len(names))
        end = PromptEnd(
            parent=names[block - 1] if block else None,
            start=block * self._size,
            tokens=array("I", prompt[block * self._size :]),
            last_message=last_message,
            client=client,
        )
        if before is not None:
            self._compare(before, end, common)
        self._prompts[end] = None
        self._by_parent.setdefault(end.parent, []).append(end)
        if len(self._prompts) > PROMPTS_MAX:
            self._remove(next(iter(self._prompts)))
        return end

    def distance(self, client: BlockHash | None) -> int | None:
        """Return how many tokens before its end the next prompt will part from one of a client.

        Returns:
            0 if it will not, ``None`` where too little is known.
        """
        seen = self._distances.get(client, ())
        if any(seen):
            return max(seen)
        return None if len(seen) < UNPARTED_MAX else 0

    def _before(
        self, prompt: Sequence[int], names: Sequence[BlockHash]
    ) -> tuple[PromptEnd | None, int]:
        """Return the prompt that shares most tokens, and how many."""
        best: PromptEnd | None = None
        most = 0
        for parent in (*reversed(names), None):
            for one in self._by_parent.get(parent, ()):
                if one.start + len(one.tokens) <= most:
                    continue
                common = one.start + common_tokens(one.tokens, prompt[one.start : one.stop])
                if common > most:
                    best, most = one, common
        return best, most

    def _compare(self, before: PromptEnd, end: PromptEnd, common: int) -> None:
        distance = before.stop - common
        if not distance:
            before.is_continued, end.is_first = True, False
            self._remember(end.client, 0)
            return
        is_late = 2 * distance <= before.stop - before.last_message
        if common < before.last_message or (before.is_first and not is_late):
            return  # an earlier message differs, or it may be another conversation
        end.is_first = False
        end.rewrites = before, common
        if before.rewrites is not None and not before.rewrites[0].is_first:
            before.rewrites = None  # nothing of it is left
        if is_late:
            self._remember(end.client, distance)

    def _remember(self, client: BlockHash | None, distance: int) -> None:
        self._distances.setdefault(client, deque(maxlen=PARTINGS_MAX)).append(distance)
        self._distances.move_to_end(client)
        if len(self._distances) > CLIENTS_MAX:
            self._distances.popitem(last=False)

    def _remove(self, end: PromptEnd) -> None:
        del self._prompts[end]
        siblings = self._by_parent[end.parent]
        siblings.remove(end)
        if not siblings:
            del self._by_parent[end.parent]
