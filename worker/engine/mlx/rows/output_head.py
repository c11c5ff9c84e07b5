"""The output head of a network, limited to the tokens whose logits are needed."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager
from typing import Any

import mlx.core as mx
import structlog

from worker.engine.mlx.untyped import Module, Network

_log = structlog.get_logger(__name__)

#: Name of the module with weights of its own, and of the method of an embedding that shares its.
_HEAD, _SHARED = "lm_head", "as_linear"
#: Tokens of the pass with which a network is checked.
_CHECK_TOKENS = (1, 0, 0)


class OutputHead:
    """Limits the logits that a network computes to those of the first tokens of its batch.

    mlx-lm's models return the logits of every token. For a piece of a prompt beside rows that
    decode, they would take most of the memory of the pass, and time where the vocabulary is large.

    Attributes:
        tokens: How many logits are computed; ``None`` for all.
    """

    def __init__(self) -> None:
        self.tokens: int | None = None
        self._read: list[mx.array] | None = None

    @contextmanager
    def watched(self) -> Generator[list[mx.array]]:
        """Return a list that gets the states which the head reads in a pass, from its network."""
        read: list[mx.array] = []
        self._read = read
        try:
            yield read
        finally:
            self._read = None

    @contextmanager
    def of(self, tokens: int) -> Generator[None]:
        """Compute the logits of the first tokens of a pass, and afterwards those of all again."""
        self.tokens = tokens
        try:
            yield
        finally:
            self.tokens = None

    def limit(self, module: Module, method: str) -> None:
        """Limit what a method of a module computes; its class is replaced by a subclass."""
        plain = type(module)

        def call(this: Module, hidden: mx.array) -> Any:  # noqa: ANN401 - mlx-lm ships no types
            first = hidden if self.tokens is None else hidden[: self.tokens]
            if self._read is not None:
                self._read.append(first)
            return getattr(plain, method)(this, first)

        module.__class__ = type(plain.__name__, (plain,), {method: call, "output_head": self})


def find_output_head(network: Network) -> OutputHead | None:
    """Return the head of a network that computes ragged rows; ``None`` where none is found."""
    modules = network.named_modules()
    known = (getattr(type(module), "output_head", None) for _, module in modules)
    head: OutputHead | None = next(filter(None, known), None)
    if head is None:
        head = OutputHead()
        for name, module in modules:
            if name.rpartition(".")[2] == _HEAD:
                head.limit(module, "__call__")
            elif hasattr(module, _SHARED):
                head.limit(module, _SHARED)
    try:
        # Only the shape counts: nothing is computed.
        with head.of(1):
            logits = network(mx.array(_CHECK_TOKENS)[:, None])
        reason = f"logits of the shape {logits.shape} instead of one token's"
    except Exception as error:  # noqa: BLE001 - whatever a model raises
        reason = f"{type(error).__name__}: {error}"
    else:
        if logits.shape[0] == 1:
            return head
    _log.warning("prompts_read_apart", why=reason)
    return None
