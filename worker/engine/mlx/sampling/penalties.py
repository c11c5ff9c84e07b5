"""Biases and penalties of tokens: logits as a function of the tokens so far.

A row's logits change in this order, as in mlx-lm, vLLM and llama.cpp:

- ``logit_bias`` is added (OpenAI, "Create chat completion").
- ``repetition_penalty`` divides positive logits and multiplies negative ones (Keskar et al.,
  https://arxiv.org/abs/1909.05858) of the tokens in its window, which reaches into the prompt, as
  in ``transformers.RepetitionPenaltyLogitsProcessor`` and mlx-lm's ``make_repetition_penalty``.
- ``frequency_penalty`` for each occurrence in the answer and ``presence_penalty`` for any are
  subtracted (OpenAI, "Advanced usage: frequency and presence penalties").

Only the logits of tokens that have a bias or occur are read and written. The token that a row reads
may still be on the device, so that its pass can be started before the host has the token.
"""

from __future__ import annotations

from array import array
from collections import Counter
from collections.abc import Sequence
from typing import Any, cast

import mlx.core as mx

from domain.values import Sampling


class ReadTokens:
    """The tokens that the rows of one pass read, fetched from the device at most once."""

    def __init__(self, tokens: mx.array | Sequence[int]) -> None:
        self._on_device = tokens if isinstance(tokens, mx.array) else None
        self._ids: list[int] | None = None if isinstance(tokens, mx.array) else list(tokens)

    def column(self, rows: Sequence[int]) -> mx.array:
        """Return the tokens of some rows, [rows, 1]."""
        tokens = mx.array(self._ids or []) if self._on_device is None else self._on_device
        return tokens[mx.array(list(rows))][:, None].astype(mx.int32)

    def of(self, row: int) -> int:
        """Return the token of a row; waits for the device."""
        if self._ids is None:
            assert self._on_device is not None, "the tokens are somewhere"
            self._ids = cast("list[int]", self._on_device.tolist())
        return self._ids[row]


class TokenCounts:
    """How often each token has occurred in one sequence, and the bias of each.

    The newest token, which the next draw follows, is kept apart until the draw after it.

    Args:
        tokens: Prompt and answer so far.
        prompt_tokens: The number of them that are the prompt.
    """

    def __init__(self, sampling: Sampling, tokens: Sequence[int], prompt_tokens: int) -> None:
        self.sampling = sampling
        self._prompt_tokens = prompt_tokens
        self._tokens = list(tokens[:-1])
        self._newest: tuple[ReadTokens, int] | None = None
        #: By token: its place in the columns.
        self._slots: dict[int, int] = {}
        self.ids, self.biases = array("i"), array("f")
        #: Occurrences in the window and in the answer, the newest token left out.
        self.recent, self.generated = array("i"), array("i")
        #: Tokens of the window besides the newest; ``None`` for all, 0 where nothing is penalised.
        window = sampling.repetition_context_size
        self._span = window - 1 if window else None
        if sampling.repetition_penalty == 1:
            self._span = 0
        for token, bias in sampling.logit_bias:
            self.biases[self._slot(token)] = bias
        first = 0 if self._span is None else max(0, len(self._tokens) - self._span)
        for token, count in Counter(self._tokens[first:]).items():
            self.recent[self._slot(token)] = count
        for token, count in Counter(self._tokens[prompt_tokens:]).items():
            self.generated[self._slot(token)] = count

    @property
    def largest_id(self) -> int:
        """Return the largest token that has a bias, -1 if none has one."""
        return max((token for token, _ in self.sampling.logit_bias), default=-1)

    @property
    def is_answering(self) -> bool:
        """Whether the newest token belongs to the answer."""
        return len(self._tokens) >= self._prompt_tokens

    def settle(self) -> None:
        """Count the newest token, which another one follows."""
        if self._newest is None:
            return
        read, row = self._newest
        self._newest = None
        token, at = read.of(row), len(self._tokens)
        self._tokens.append(token)
        self._count(token, at, 1)

    def read(self, tokens: ReadTokens, row: int) -> None:
        """Set the newest token."""
        self._newest = tokens, row

    def take_back(self, tokens: int) -> None:
        """Forget the newest tokens, which were drafted and not drawn."""
        for _ in range(tokens):
            if self._newest is not None:
                self._newest = None
                continue
            token = self._tokens.pop()
            self._count(token, len(self._tokens), -1)

    def _count(self, token: int, at: int, change: int) -> None:
        if at >= self._prompt_tokens:
            self.generated[self._slot(token)] += change
        if self._span == 0:
            return
        self.recent[self._slot(token)] += change
        if self._span is not None and at >= self._span:
            self.recent[self._slot(self._tokens[at - self._span])] -= change

    def _slot(self, token: int) -> int:
        slot = self._slots.setdefault(token, len(self.ids))
        if slot == len(self.ids):
            self.ids.append(token)
            self.biases.append(0.0)
            self.recent.append(0)
            self.generated.append(0)
        return slot


class PenalisedRows:
    """The counts of the rows of one pass that have a bias or a penalty.

    Several rows may belong to one sequence; each sees the tokens up to its own.
    """

    def __init__(self) -> None:
        self.rows: list[int] = []
        self._sampling: list[Sampling] = []
        self._is_answering: list[bool] = []
        self._columns: list[tuple[array[Any], ...]] = []

    def add(self, row: int, counts: TokenCounts) -> None:
        """Add a row, whose newest token is set afterwards."""
        self.rows.append(row)
        self._sampling.append(counts.sampling)
        self._is_answering.append(counts.is_answering)
        # Later tokens of the pass change the counts.
        self._columns.append(
            (counts.ids[:], counts.recent[:], counts.generated[:], counts.biases[:])
        )

    def changed(self, logits: mx.array, read: ReadTokens) -> mx.array:
        """Return the logits of the rows after biases and penalties, in float32.

        Args:
            logits: Of all rows of the pass, [all, vocabulary].
            read: The newest token of each of them.
        """
        if len(self.rows) < logits.shape[0]:
            logits = logits[mx.array(self.rows)]
        return self._penalised(logits.astype(mx.float32), read.column(self.rows))

    def _penalised(self, logits: mx.array, newest: mx.array) -> mx.array:
        ids, recent, generated, biases = (self._column(at) for at in range(4))
        lengths = mx.array([len(one[0]) for one in self._columns])[:, None]
        # The first place, and those that a shorter row lacks, hold the newest token again: each
        # place of a token gets the same value, so that the order of writing does not matter.
        ids = mx.where(mx.arange(ids.shape[1]) <= lengths, ids, newest)
        ids[:, :1] = newest
        is_newest = ids == newest
        answering = mx.array(self._is_answering)[:, None]
        total = (generated * is_newest).sum(axis=-1, keepdims=True) + answering
        generated = mx.where(is_newest, total, generated)
        biases = mx.where(is_newest, (biases * is_newest).sum(axis=-1, keepdims=True), biases)
        values = mx.take_along_axis(logits, ids, axis=-1) + biases
        repetition = self._rule("repetition_penalty")
        repeated = mx.where(values < 0, values * repetition, values / repetition)
        values = mx.where((recent > 0) | is_newest, repeated, values)
        values -= self._rule("frequency_penalty") * generated
        values -= self._rule("presence_penalty") * (generated > 0)
        return mx.put_along_axis(logits, ids, values, axis=-1)

    def _column(self, which: int) -> mx.array:
        """Return a column of each row, [rows, 1 + most tokens]: a zero, the row's values, zeros."""
        width = 1 + max(len(one[0]) for one in self._columns)
        kind = self._columns[0][which].typecode
        whole: array[Any] = array(kind)
        for columns in self._columns:
            values = columns[which]
            whole.append(0)
            whole.extend(values)
            whole.extend(array(kind, bytes((width - 1 - len(values)) * whole.itemsize)))
        return mx.array(memoryview(whole)).reshape(len(self._columns), width)  # type: ignore[arg-type]  # a buffer will do

    def _rule(self, name: str) -> mx.array:
        return mx.array([[float(getattr(one, name))] for one in self._sampling])
