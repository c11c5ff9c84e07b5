"""Recurrent layers in a pass in which rows have several new tokens, each of which may be refused.

The state of a recurrent layer is that after its last token. For a pass that verifies drafts, a
``RaggedState`` takes the place of the cache of each such layer. It brings the new tokens of a row
together before the two computations in which tokens meet: a convolution, whose state is the last
inputs, and a recurrence. Their inputs are kept until it is known how many tokens of each row are
drawn. Then the state after those is chosen: a slice of the inputs of the convolution, or the
recurrence over that part of its inputs. Nothing else of the network is computed again.

The layers of mlx-lm are not changed. Their convolution modules become a subclass, and the functions
that compute recurrences are replaced in the modules that import them.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager
from copy import deepcopy
from dataclasses import dataclass
from functools import cache, partial, wraps
from itertools import accumulate, pairwise
from typing import Any

import mlx.core as mx
from mlx.nn.layers.convolution import Conv1d
from mlx_lm.models.gated_delta import gated_delta_update
from mlx_lm.models.ssm import ssm_update

from worker.engine.mlx.kv.cpu_attention import use_fast_swiglu
from worker.engine.mlx.kv.window_cache import (
    TRIMMABLE_CLASSES,
    is_state,
    leaves,
    make_row_caches,
)
from worker.engine.mlx.rows.ragged_cache import (
    RaggedKind,
    checked_rows,
    forward_rows,
    install_ragged_attention,
    logits_differ,
    merged_states,
)
from worker.engine.mlx.untyped import Cache, Module, Network, replace_function

#: The functions that compute recurrences, and their arguments with a value for each new token:
#: [rows, new tokens, …].
_RECURRENCES: dict[Callable[..., Any], tuple[str, ...]] = {
    gated_delta_update: ("q", "k", "v", "a", "b"),
    ssm_update: ("hidden_states", "B", "C", "dt"),
}
_STATE = "state"


@dataclass(frozen=True, slots=True)
class _Level:
    """New tokens of rows that have them at the same places, and no others there.

    Attributes:
        tokens: Their places among all new tokens, row by row.
        rows: How many rows have them.
        length: How many each of those rows has.
        going_on: How many of the rows, the first ones, have tokens after them.
    """

    tokens: mx.array
    rows: int
    length: int
    going_on: int


class _Layout:
    """Some rows of a pass, with a number of new tokens of each.

    A recurrence computes rows level by level: the tokens that all of them have, then those of the
    rows that have more. So it takes as many steps as the longest row has tokens, without padding.

    Args:
        rows: Indices of the rows in the pass.
        first: The place of the first new token of each row of the pass.
        counts: How many new tokens of each of ``rows`` are computed.
    """

    def __init__(self, rows: Sequence[int], first: Sequence[int], counts: Sequence[int]) -> None:
        order = sorted(range(len(rows)), key=lambda at: -counts[at])
        longest = [rows[at] for at in order]
        #: The rows, the longest first, and the place of each of ``rows`` among them.
        self._longest = mx.array(longest)
        self._back = _sorting(order)
        self.levels: list[_Level] = []
        places: list[int] = []
        for start, end in pairwise([0, *sorted(set(counts))]):
            alive, going_on = (sum(one >= least for one in counts) for least in (end, end + 1))
            level = [first[row] + at for row in longest[:alive] for at in range(start, end)]
            self.levels.append(_Level(mx.array(level), alive, end - start, going_on))
            places += level
        self._tokens_back = _sorting(places)

    def compute(
        self, recurrence: _Recurrence, inputs: Mapping[str, mx.array], state: mx.array
    ) -> tuple[mx.array, mx.array]:
        """Return the outputs for the new tokens, [new tokens, …], and the state of each row.

        Args:
            inputs: For each new token of the pass, [new tokens, …].
            state: Of each row of the pass.
        """
        state = state[self._longest]
        outputs, ends = [], []
        for level in self.levels:
            given = {
                name: one[level.tokens].reshape(level.rows, level.length, *one.shape[1:])
                for name, one in inputs.items()
            }
            output, state = recurrence(**given, state=state)
            outputs.append(output.reshape(-1, *output.shape[2:]))
            ends.append(state[level.going_on :])
            state = state[: level.going_on]
        return _joined(outputs)[self._tokens_back], _joined(ends[::-1])[self._back]


def _sorting(places: Sequence[int]) -> mx.array:
    """Return where the items of some places are, in the order of the places."""
    return mx.array(sorted(range(len(places)), key=places.__getitem__))


def _joined(parts: list[mx.array]) -> mx.array:
    return parts[0] if len(parts) == 1 else mx.concatenate(parts)


class _Pass:
    """The new tokens of a pass over some rows. Layers of one kind share what is made for the first.

    Attributes:
        lengths: How many each row has.
        tokens: How many there are.
        whole: All of them.
    """

    def __init__(self, lengths: Sequence[int]) -> None:
        self.lengths = list(lengths)
        self.tokens = sum(lengths)
        self._first = [0, *accumulate(lengths)]
        self.whole = _Layout(range(len(lengths)), self._first, lengths)
        self.windows = cache(self._windows)
        self.state_windows = cache(self._state_windows)
        self.cut = cache(self._cut)

    def _windows(self, kernel: int) -> mx.array:
        """Return where the inputs of a convolution are, [new tokens, kernel]."""
        ends = [(row, at + 1) for row, one in enumerate(self.lengths) for at in range(one)]
        return self._last(ends, kernel, kernel - 1)

    def _state_windows(self, counts: tuple[int, ...], kept: int) -> mx.array:
        """Return where the inputs are that the state after some tokens has, [rows, kept]."""
        return self._last(list(enumerate(counts)), kept, kept)

    def _last(self, ends: Sequence[tuple[int, int]], size: int, kept: int) -> mx.array:
        """Return where the last inputs before some places are.

        Args:
            ends: Rows, with the number of their new tokens before the place.
            kept: Inputs of each row in its state; those of all rows come before the new ones.
        """
        found = []
        for row, end in ends:
            state, new = kept * row, kept * len(self.lengths) + self._first[row]
            places = range(end - size, end)
            found.append([new + at if at >= 0 else state + kept + at for at in places])
        return mx.array(found)

    def _cut(self, counts: tuple[int, ...]) -> tuple[_Layout, mx.array] | None:
        """Return the rows that keep a part of their tokens, and how their states replace others.

        ``None`` where each row keeps all of them.
        """
        rows = [row for row, one in enumerate(counts) if one < self.lengths[row]]
        if not rows:
            return None
        layout = _Layout(rows, self._first, [counts[row] for row in rows])
        places = list(range(len(counts)))
        for at, row in enumerate(rows):
            places[row] = len(counts) + at
        return layout, mx.array(places)


#: From inputs by name, [rows, new tokens, …], and ``state`` to the outputs and the state after.
_Recurrence = Callable[..., tuple[mx.array, mx.array]]
#: From the number of tokens of each row that are kept to a part of the state after them.
_Chosen = Callable[[tuple[int, ...]], mx.array]


class _Part(mx.array):
    """A part of a state, by which a recurrence finds its ``RaggedState``."""

    owner: RaggedState

    @classmethod
    def of(cls, array: mx.array, owner: RaggedState) -> _Part:
        part = cls(array)
        part.owner = owner
        return part


class RaggedState:
    """The state of one recurrent layer for one pass over several new tokens of some rows.

    Takes the place of an ``ArraysCache``, which keeps the state from before the pass until
    ``keep_tokens`` is called. The tokens of one row come as [1, new tokens, …], those of several
    as [new tokens, 1, …].

    Args:
        hooks: Finds the computations of the layer.
        held: The state of all rows, [rows, …] in each of its parts.
    """

    #: Names that mlx-lm's layers read of an ``ArraysCache``.
    lengths = left_padding = None

    def __init__(self, hooks: StateHooks, held: Cache, rows: _Pass) -> None:
        self._hooks = hooks
        self._held = held
        self._pass = rows
        self._is_alone = len(rows.lengths) == 1
        #: What chooses each part of the state.
        self._parts: list[_Chosen] = []

    def __getitem__(self, index: int) -> _Part:
        """Return a part of the state, of the shape that the layer expects."""
        self._hooks.current = self
        part: mx.array = self._held.cache[index]
        if not self._is_alone:
            # Not read: ``convolve`` and ``recur`` take the state of each row.
            part = mx.broadcast_to(part[:1], (self._pass.tokens, *part.shape[1:]))
        return _Part.of(part, self)

    def __setitem__(self, index: int, value: object) -> None:
        """Ignore the state after the last token."""

    def advance(self, tokens: int) -> None:
        """Ignore the number of tokens."""

    @property
    def is_whole(self) -> bool:
        """Whether all parts of the state were computed by known computations."""
        return len(self._parts) == len(self._held.cache)

    def convolve(self, compute: Callable[[mx.array], mx.array], inputs: mx.array) -> mx.array:
        """Compute a convolution without padding, whose state comes before its inputs.

        Args:
            inputs: [new tokens, kernel, channels], only the last column of which is right, or
                [1, kernel - 1 + new tokens, channels] for one row.
        """
        rows = self._pass
        if self._is_alone:
            size, known = inputs.shape[1] - rows.tokens + 1, inputs[0]
        else:
            size, held = inputs.shape[1], self._held.cache[len(self._parts)]
            known = mx.concatenate([held.reshape(-1, held.shape[-1]), inputs[:, -1]])
            inputs = known[rows.windows(size)]

        def chosen(counts: tuple[int, ...]) -> mx.array:
            return known[rows.state_windows(counts, size - 1)]

        self._parts.append(chosen)
        return compute(inputs)

    def recur(self, function: Callable[..., Any], given: dict[str, Any]) -> tuple[mx.array, None]:
        """Compute a recurrence.

        Args:
            function: Returns the outputs and the state after the last token.
        """
        rows, before, names = self._pass, self._held.cache[len(self._parts)], _RECURRENCES[function]
        shape = given[names[0]].shape[:2]
        inputs = {name: given[name].reshape(-1, *given[name].shape[2:]) for name in names}
        compute = partial(function, **given)
        outputs, after = rows.whole.compute(compute, inputs, before)

        def chosen(counts: tuple[int, ...]) -> mx.array:
            cut = rows.cut(counts)
            if cut is None:
                return after
            again = cut[0].compute(compute, inputs, before)[1]
            return mx.concatenate([after, again])[cut[1]]

        self._parts.append(chosen)
        return outputs.reshape(*shape, *outputs.shape[1:]), None

    def keep_tokens(self, counts: Sequence[int]) -> None:
        """Set the state to that after some of the new tokens of each row.

        Args:
            counts: How many of each row, at least one.
        """
        assert self.is_whole, "each part of a state is chosen"
        self._held.cache = [choose(tuple(counts)) for choose in self._parts]
        self._parts = []


class StateHooks:
    """Shows the convolutions of a network the state of the layer that is being computed.

    Attributes:
        current: It; ``None`` outside of a pass over several new tokens.
    """

    def __init__(self) -> None:
        self.current: RaggedState | None = None

    @contextmanager
    def drafting(
        self, states: Mapping[int, Any], lengths: Sequence[int]
    ) -> Generator[dict[int, RaggedState]]:
        """Return what takes the place of the states of all rows in a pass, by index of their layer.

        Args:
            lengths: New tokens of each row.
        """
        rows = _Pass(lengths)
        try:
            yield {index: RaggedState(self, held, rows) for index, held in states.items()}
        finally:
            self.current = None

    def watch(self, module: Module) -> None:
        """Replace the class of a convolution by a subclass."""
        plain = type(module)

        def call(this: Module, inputs: mx.array) -> mx.array:
            compute = partial(plain.__call__, this)
            return self.current.convolve(compute, inputs) if self.current else compute(inputs)

        module.__class__ = type(plain.__name__, (plain,), {"__call__": call, _HOOKS: self})


_HOOKS = "state_hooks"


def _hooked(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return a recurrence that computes a ``RaggedState`` where it gets a part of one."""
    signature = inspect.signature(function)
    at = list(signature.parameters).index(_STATE)

    @wraps(function)
    def call(*args: Any, **options: Any) -> Any:  # noqa: ANN401 - mlx-lm ships no types
        state = args[at] if len(args) > at else options.get(_STATE)
        if not isinstance(state, _Part):
            return function(*args, **options)
        return state.owner.recur(function, signature.bind(*args, **options).arguments)

    return call


@dataclass(frozen=True, slots=True)
class RowSupport:
    """How a network computes several rows, and whether several new tokens of each.

    Attributes:
        why: Why the kind is not ``WHOLE``; empty where it is.
        draft_refusal: Why drafts cannot be verified; empty where they can.
        hooks: What drafts need where there are recurrent layers.
    """

    kind: RaggedKind = RaggedKind.NONE
    why: str = ""
    draft_refusal: str = "its rows are computed one by one"
    hooks: StateHooks | None = None


def find_row_support(network: Network, *, computes: bool = True) -> RowSupport:
    """Prepare a network for ragged rows and for passes over drafts; return what it can compute.

    Where it has recurrent layers, two rows with drafts are computed, a part of them is kept, and
    the next token computed; the logits must be those without drafts.

    Args:
        computes: Whether logits are computed and compared; else only their shapes are made.
    """
    use_fast_swiglu(network)
    kind, why = install_ragged_attention(network, computes=computes)
    if not kind:
        return RowSupport(why=why)
    found = leaves(make_row_caches(network))
    other = {type(leaf).__name__ for leaf in found if type(leaf) not in TRIMMABLE_CLASSES}
    if not any(map(is_state, found)):
        refusal = f"{', '.join(sorted(other))} cannot take back tokens" if other else ""
        return RowSupport(kind, why, refusal)
    hooks, refusal = _install(network), ""
    # That of rows of one token each, which do not show how several tokens of a row attend.
    for tried in (kind, RaggedKind.BY_TOKEN):
        try:
            refusal = _check(network, hooks, tried, computes=computes)
        except Exception as error:  # noqa: BLE001 - whatever a model raises
            refusal = f"{type(error).__name__}: {error}"
        if not refusal:
            return RowSupport(tried, why, "", hooks)
    return RowSupport(kind, why, f"the states of its layers cannot be chosen: {refusal}")


def _install(network: Network) -> StateHooks:
    for function in _RECURRENCES:
        replace_function(network, function, _hooked(function))
    modules = list(network.modules())
    hooks = next((one for part in modules if (one := getattr(type(part), _HOOKS, None))), None)
    if hooks is None:
        hooks = StateHooks()
        for part in modules:
            if type(part) is Conv1d:
                hooks.watch(part)
    return hooks


#: Tokens after the rows of the check, and how many of them are drafted and kept.
_CHECK_TOKENS = ((1, 2, 0), (2, 1))
_CHECK_DRAFTED, _CHECK_KEPT = (3, 1), (2, 1)


def _check(network: Network, hooks: StateHooks, kind: RaggedKind, *, computes: bool) -> str:
    """Return why drafts differ; an empty text if they do not."""
    checked = checked_rows(network)
    expected = [
        [network(mx.array([[token]]), cache=caches)[0] for token in tokens]
        for tokens, caches in zip(_CHECK_TOKENS, deepcopy(checked), strict=True)
    ]
    for rows in (1, len(expected)):
        drafted = [expected[at][: _CHECK_DRAFTED[at]] for at in range(rows)]
        following = [expected[at][_CHECK_KEPT[at]] for at in range(rows)]
        alone = mx.concatenate([*(one for row in drafted for one in row), *following])
        found = _drafted(network, hooks, kind, deepcopy(checked[:rows]))
        if computes and (reason := logits_differ(alone, found)):
            return reason
    return ""


def _drafted(
    network: Network, hooks: StateHooks, kind: RaggedKind, rows: Sequence[list[Any]]
) -> mx.array:
    """Return the logits of some rows after each drafted token, and after the next one."""
    states, count = merged_states(rows), len(rows)
    lengths, kept = _CHECK_DRAFTED[:count], _CHECK_KEPT[:count]
    tokens = [_CHECK_TOKENS[at][:length] for at, length in enumerate(lengths)]
    with hooks.drafting(states, lengths) as ragged:
        logits = forward_rows(network, rows, tokens, ragged, kind)
    if not all(state.is_whole for state in ragged.values()):
        raise NotImplementedError("a function that is not known computes them")
    for caches, length, count_kept in zip(rows, lengths, kept, strict=True):
        for leaf in leaves(caches):
            if not is_state(leaf):
                leaf.trim(length - count_kept)
    for state in ragged.values():
        state.keep_tokens(kept)
    following = [_CHECK_TOKENS[at][one : one + 1] for at, one in enumerate(kept)]
    return mx.concatenate([logits, forward_rows(network, rows, following, states, kind)])
