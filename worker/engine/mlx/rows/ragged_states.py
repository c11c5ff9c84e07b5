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
import sys
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial, wraps
from itertools import groupby
from typing import Any

import mlx.core as mx
from mlx.nn.layers.convolution import Conv1d
from mlx_lm.models.gated_delta import gated_delta_update
from mlx_lm.models.ssm import ssm_update

from worker.engine.mlx.kv.window_cache import (
    TRIMMABLE_CLASSES,
    is_state,
    leaves,
    make_row_caches,
)
from worker.engine.mlx.rows.ragged_cache import RaggedKind, RaggedRows, forward_rows, logits_differ

#: The functions that compute recurrences, and their arguments with a value for each new token:
#: [rows, new tokens, …].
_RECURRENCES: dict[Callable[..., Any], tuple[str, ...]] = {
    gated_delta_update: ("q", "k", "v", "a", "b"),
    ssm_update: ("hidden_states", "B", "C", "dt"),
}
_STATE = "state"


@dataclass(frozen=True, slots=True)
class _Run:
    """Consecutive rows with equally many new tokens."""

    first_row: int
    rows: int
    first_token: int
    length: int

    def tokens_of(self, batch: mx.array) -> mx.array:
        """Return its part of [new tokens, 1, …] as [rows, length, …]."""
        last = self.first_token + self.rows * self.length
        part = batch[self.first_token : last]
        return part.reshape(self.rows, self.length, *batch.shape[2:])

    def rows_of(self, held: mx.array) -> mx.array:
        return held[self.first_row : self.first_row + self.rows]


def _runs(lengths: Sequence[int]) -> Iterator[_Run]:
    row = token = 0
    for length, group in groupby(lengths):
        rows = len(list(group))
        yield _Run(row, rows, token, length)
        row, token = row + rows, token + rows * length


#: From the first row, the one after the last, and new tokens of each to the state after them.
_Chosen = Callable[[int, int, int], mx.array]


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
    ``keep_tokens`` is called.

    Args:
        hooks: Finds the computations of the layer.
        held: The state of all rows, [rows, …] in each of its parts.
        lengths: New tokens of each row.
        is_flat: Whether the new tokens come as [new tokens, 1, …], else as [1, new tokens, …].
    """

    #: Names that mlx-lm's layers read of an ``ArraysCache``.
    lengths = left_padding = None

    def __init__(
        self,
        hooks: StateHooks,
        held: Any,  # noqa: ANN401 - mlx-lm ships no types
        lengths: Sequence[int],
        *,
        is_flat: bool,
    ) -> None:
        assert is_flat or len(lengths) == 1, "several rows come one token after the other"
        self._hooks = hooks
        self._held = held
        self._runs = list(_runs(lengths))
        self._tokens = sum(lengths)
        self._is_flat = is_flat
        #: What chooses each part of the state, run by run.
        self._parts: list[list[_Chosen]] = []

    def __getitem__(self, index: int) -> _Part:
        """Return a part of the state, of the shape that the layer expects."""
        self._hooks.current = self
        part: mx.array = self._held.cache[index]
        if self._is_flat:
            # Not read: ``convolve`` and ``recur`` take the state of each row.
            part = mx.broadcast_to(part[:1], (self._tokens, *part.shape[1:]))
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
                [1, kernel - 1 + new tokens, channels].
        """
        at = len(self._parts)
        kept = inputs.shape[1] - (1 if self._is_flat else self._tokens)
        outputs: list[mx.array] = []
        chosen: list[_Chosen] = []
        for run in self._runs:
            window = inputs
            if self._is_flat:
                new, before = run.tokens_of(inputs[:, -1:]), run.rows_of(self._held.cache[at])
                window = mx.concatenate([before, new], axis=1)
            outputs.append(self._laid(compute(window)))
            chosen.append(partial(_window, window, kept))
        self._parts.append(chosen)
        return _joined(outputs)

    def recur(self, function: Callable[..., Any], given: dict[str, Any]) -> tuple[mx.array, None]:
        """Compute a recurrence.

        Args:
            function: Returns the outputs and the state after the last token.
            given: Its arguments.
        """
        at, names = len(self._parts), _RECURRENCES[function]
        outputs: list[mx.array] = []
        chosen: list[_Chosen] = []
        for run in self._runs:
            new = {name: given[name] for name in names}
            if self._is_flat:
                new = {name: run.tokens_of(one) for name, one in new.items()}
            before = run.rows_of(self._held.cache[at])
            output, after = function(**{**given, **new, _STATE: before})
            outputs.append(self._laid(output))
            call = partial(function, **given)
            chosen.append(partial(_recurred, call, new, before, after, run.length))
        self._parts.append(chosen)
        return _joined(outputs), None

    def keep_tokens(self, counts: Sequence[int]) -> None:
        """Set the state to that after some of the new tokens of each row.

        Args:
            counts: How many of each row, at least one.
        """
        assert self.is_whole, "each part of a state is chosen"
        self._held.cache = [
            _joined(
                [
                    choose(part.first_row, part.first_row + part.rows, part.length)
                    for run, choose in zip(self._runs, parts, strict=True)
                    for part in _runs(counts[run.first_row : run.first_row + run.rows])
                ]
            )
            for parts in self._parts
        ]
        self._parts = []

    def _laid(self, output: mx.array) -> mx.array:
        """Return [rows, length, …] as the layer expects it."""
        return output.reshape(-1, 1, *output.shape[2:]) if self._is_flat else output


def _window(window: mx.array, kept: int, first: int, stop: int, tokens: int) -> mx.array:
    return window[first:stop, tokens : tokens + kept]


def _recurred(
    call: Callable[..., Any],
    new: dict[str, mx.array],
    before: mx.array,
    after: mx.array,
    length: int,
    first: int,
    stop: int,
    tokens: int,
) -> mx.array:
    if tokens == length:
        return after[first:stop]
    inputs = {name: one[first:stop, :tokens] for name, one in new.items()}
    state: mx.array = call(**inputs, state=before[first:stop])[1]
    return state


def _joined(parts: list[mx.array]) -> mx.array:
    return parts[0] if len(parts) == 1 else mx.concatenate(parts)


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
        try:
            yield {
                index: RaggedState(self, held, lengths, is_flat=len(lengths) > 1)
                for index, held in states.items()
            }
        finally:
            self.current = None

    def watch(self, module: Any) -> None:  # noqa: ANN401 - mlx-lm ships no types
        """Replace the class of a convolution by a subclass."""
        plain = type(module)

        def call(this: Any, inputs: mx.array) -> mx.array:  # noqa: ANN401 - mlx-lm ships no types
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
        kind: How it computes rows of unequal length.
        why: Why the kind is not ``WHOLE``; empty where it is.
        draft_refusal: Why drafts cannot be verified; empty where they can.
        hooks: What drafts need where there are recurrent layers.
    """

    kind: RaggedKind = RaggedKind.NONE
    why: str = ""
    draft_refusal: str = "its rows are computed one by one"
    hooks: StateHooks | None = None


def find_row_support(
    network: Any,  # noqa: ANN401 - mlx-lm ships no types
    rows: RaggedRows,
    *,
    computes: bool = True,
) -> RowSupport:
    """Prepare a network for passes over drafts, and return what it can compute.

    Where it has recurrent layers, two rows with drafts are computed, a part of them is kept, and
    the next token computed; the logits must be those without drafts.

    Args:
        rows: What ``install_ragged_attention`` returned for it.
        computes: Whether logits are computed and compared; else only their shapes are made.
    """
    found = leaves(make_row_caches(network))
    if not rows:
        return RowSupport(why=rows.why)
    other = {type(leaf).__name__ for leaf in found if type(leaf) not in TRIMMABLE_CLASSES}
    if not any(map(is_state, found)):
        why = f"{', '.join(sorted(other))} cannot take back tokens" if other else ""
        return RowSupport(rows.kind, rows.why, why)
    hooks, refusal = _install(network), ""
    # That of rows of one token each, which do not show how several tokens of a row attend.
    for kind in (rows.kind, RaggedKind.BY_TOKEN):
        try:
            refusal = _check(network, hooks, kind, computes=computes)
        except Exception as error:  # noqa: BLE001 - whatever a model raises
            refusal = f"{type(error).__name__}: {error}"
        if not refusal:
            return RowSupport(kind, rows.why, "", hooks)
    return RowSupport(rows.kind, rows.why, f"the states of its layers cannot be chosen: {refusal}")


def _install(network: Any) -> StateHooks:  # noqa: ANN401 - mlx-lm ships no types
    modules = list(network.modules())
    for module in {sys.modules[type(part).__module__] for part in modules}:
        for function in _RECURRENCES:
            if getattr(module, function.__name__, None) is function:
                setattr(module, function.__name__, _hooked(function))
    hooks = next((one for part in modules if (one := getattr(type(part), _HOOKS, None))), None)
    if hooks is None:
        hooks = StateHooks()
        for part in modules:
            if type(part) is Conv1d:
                hooks.watch(part)
    return hooks


#: Prompts of the check, the tokens after each, and how many of them are drafted and kept.
_CHECK_PROMPTS = ((0, 1, 2, 3, 4), (1, 0))
_CHECK_TOKENS = ((1, 2, 0), (2, 1))
_CHECK_DRAFTED, _CHECK_KEPT = (3, 1), (2, 1)


def _check(
    network: Any,  # noqa: ANN401 - mlx-lm ships no types
    hooks: StateHooks,
    kind: RaggedKind,
    *,
    computes: bool,
) -> str:
    """Return why drafts differ; an empty text if they do not."""
    expected = [
        [network(mx.array([[token]]), cache=caches)[0] for token in tokens]
        for tokens, caches in zip(_CHECK_TOKENS, _prefilled(network), strict=True)
    ]
    for rows in (1, len(expected)):
        drafted = [expected[at][: _CHECK_DRAFTED[at]] for at in range(rows)]
        following = [expected[at][_CHECK_KEPT[at]] for at in range(rows)]
        alone = mx.concatenate([*(one for row in drafted for one in row), *following])
        found = _drafted(network, hooks, kind, rows)
        if computes and (reason := logits_differ(alone, found)):
            return reason
    return ""


def _drafted(network: Any, hooks: StateHooks, kind: RaggedKind, count: int) -> mx.array:  # noqa: ANN401 - mlx-lm ships no types
    """Return the logits of some rows after each drafted token, and after the next one."""
    rows = _prefilled(network)[:count]
    flat = [leaves(caches) for caches in rows]
    states = {
        index: type(leaf).merge([found[index] for found in flat])
        for index, leaf in enumerate(flat[0])
        if is_state(leaf)
    }
    lengths, kept = _CHECK_DRAFTED[:count], _CHECK_KEPT[:count]
    tokens = [_CHECK_TOKENS[at][:length] for at, length in enumerate(lengths)]
    with hooks.drafting(states, lengths) as ragged:
        logits = forward_rows(network, rows, tokens, ragged, kind)
    if not all(state.is_whole for state in ragged.values()):
        msg = "a function that is not known computes them"
        raise NotImplementedError(msg)
    for found, length, count_kept in zip(flat, lengths, kept, strict=True):
        for leaf in found:
            if not is_state(leaf):
                leaf.trim(length - count_kept)
    for state in ragged.values():
        state.keep_tokens(kept)
    following = [_CHECK_TOKENS[at][one : one + 1] for at, one in enumerate(kept)]
    return mx.concatenate([logits, forward_rows(network, rows, following, states, kind)])


def _prefilled(network: Any) -> list[list[Any]]:  # noqa: ANN401 - mlx-lm ships no types
    rows = []
    for tokens in _CHECK_PROMPTS:
        caches = make_row_caches(network)
        network(mx.array([tokens]), cache=caches)
        rows.append(caches)
    return rows
