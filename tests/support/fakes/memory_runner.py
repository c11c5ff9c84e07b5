"""A scripted runner whose contexts need memory, and are parked there when they end."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import takewhile

from tests.support.fakes.engine import DEFAULT_ANSWER, ScriptedRunner
from worker.engine.ports import Admission, Admitted, CachedPrefix, LoadedModel, StepResult


class SmallMemoryRunner(ScriptedRunner):
    """``ScriptedRunner`` with memory for a number of tokens.

    A running sequence reserves its prompt and its answer. A context that ends is parked until its
    memory is needed; the one that was parked first is evicted first. All contexts are on disk.

    Args:
        answers: Answer by last message.
        context: Context length.
        memory_tokens: Tokens of running and parked contexts together.

    Attributes:
        parked: The parked contexts, the oldest first.
        loads: Sequences that joined without their context in memory, by label.
    """

    def __init__(
        self,
        answers: Mapping[str, str] | None = None,
        *,
        context: int = 1000,
        memory_tokens: int,
    ) -> None:
        super().__init__(answers, context=context)
        self.memory_tokens = memory_tokens
        self.parked: list[tuple[int, ...]] = []
        self.loads: list[str] = []
        self._on_disk: list[tuple[int, ...]] = []
        #: Of each running sequence: its tokens, and how many it reserves.
        self._contexts: dict[int, tuple[list[int], int]] = {}

    @property
    def used_tokens(self) -> int:
        """Tokens that running sequences reserve."""
        return sum(reserved for _, reserved in self._contexts.values())

    def load(self) -> LoadedModel:
        return replace(super().load(), cached_prefix=self.cached_prefix)

    def cached_prefix(self, tokens: Sequence[int]) -> CachedPrefix:
        resident = max((_common(tokens, one) for one in list(self.parked)), default=0)
        known = max([resident, *(_common(tokens, one) for one in list(self._on_disk))])
        return CachedPrefix(known, "disk" if known > resident else "ram", resident)

    def insert(self, admission: Admission) -> Admitted | None:
        reserved = len(admission.tokens) + min(admission.max_new_tokens, self._rest(admission) + 1)
        if self.used_tokens + reserved > self.memory_tokens and self._contexts:
            return None
        known = self.cached_prefix(admission.tokens)
        admitted = super().insert(admission)
        if admitted is None:
            return None
        if not known.resident:
            self.loads.append(admission.label)
        self.parked = [one for one in self.parked if _common(one, admission.tokens) < len(one)]
        while self.parked and self.used_tokens + reserved > self._free_of_parked():
            del self.parked[0]
        self._contexts[admitted.uid] = [*admission.tokens], reserved
        return replace(admitted, cached_tokens=known.tokens)

    def step(self) -> StepResult:
        result = super().step()
        for uid, token, finish in result.tokens:
            self._contexts[uid][0].append(token)
            if finish is not None:
                self._park(uid)
        return result

    def remove(self, uid: int) -> None:
        super().remove(uid)
        self._park(uid)

    def reset(self) -> None:
        super().reset()
        self._contexts.clear()

    def _rest(self, admission: Admission) -> int:
        prompt = admission.tokens[: len(admission.tokens) - admission.first_index]
        answer = self.answers.get("".join(map(chr, prompt)), DEFAULT_ANSWER)
        return max(0, len(answer) - admission.first_index)

    def _free_of_parked(self) -> int:
        return self.memory_tokens - sum(map(len, self.parked))

    def _park(self, uid: int) -> None:
        if uid in self._contexts:
            context = tuple(self._contexts.pop(uid)[0])
            self.parked.append(context)
            self._on_disk.append(context)


def _common(one: Sequence[int], other: Sequence[int]) -> int:
    pairs = zip(one, other, strict=False)
    return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], pairs))
