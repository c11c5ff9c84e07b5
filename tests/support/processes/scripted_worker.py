"""The real worker, whose model answers from ``$SCRIPT_DIR/script.json``.

The script is a list of ``{"after": …, "text": …}``, read again for each prompt. The line whose
``after`` stands nearest to the end of the prompt gives the answer, or the first line where none
occurs. ``"text": null`` leaves the answer to the model. ``"hold_at": n`` stops the engine before
the n-th token until the file ``$SCRIPT_DIR/go`` exists. ``"pace_s": s`` makes each step of the
whole batch take at least that long. Where the prompt opens reasoning, a thought precedes the
answer.
"""

from __future__ import annotations

import json
import os
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer

import worker.composition
import worker.demo_model
import worker.main
from domain.chat.generation import PreparedPrompt
from tests.support.polling import pause
from worker.engine.grammar.ports import Unlimited
from worker.engine.mlx.runner import BatchRunner
from worker.engine.ports import LoadedModel

THOUGHT = "I know my line."
_DIR = Path(os.environ["SCRIPT_DIR"])
_MODEL = Path(worker.demo_model.__file__).parent


class Line(Unlimited):
    """``Constraint`` that allows exactly one text."""

    is_free = False

    def __init__(
        self, ids: list[int], vocabulary: int, *, hold_at: int | None, pace_s: float
    ) -> None:
        self._ids = ids
        self._bytes = (vocabulary + 7) // 8
        self._hold_at = hold_at
        self._pace_s = pace_s
        self.accepted_count = 0

    @property
    def is_over(self) -> bool:
        return self.accepted_count >= len(self._ids)

    def accept(self, token: int) -> None:
        del token
        self.accepted_count += 1

    def mask(self) -> bytes:
        while self.accepted_count == self._hold_at and not (_DIR / "go").exists():
            pause(0.01, reason="the engine holds until the test lets it go on")
        pause(self._pace_s, reason="the pace of the scripted model")
        token = self._ids[min(self.accepted_count, len(self._ids) - 1)]
        mask = bytearray(self._bytes)
        mask[token // 8] = 1 << token % 8
        return bytes(mask)


class Script:
    """The script as constraints: one line for each prompt, of the script as it is then."""

    def __init__(self) -> None:
        self._tokenizer = Tokenizer.from_file(str(_MODEL / "tokenizer.json"))

    def line(self, prompt: PreparedPrompt) -> Line | None:
        text = self._tokenizer.decode(list(prompt.tokens), skip_special_tokens=False)
        lines: list[dict[str, Any]] = json.loads((_DIR / "script.json").read_text())
        line = max(lines, key=lambda one: text.rfind(one["after"]))
        if line["text"] is None:
            return None
        thought = THOUGHT + "\n</think>\n\n" if text.rstrip().endswith("<think>") else ""
        answer = thought + line["text"] + "<|im_end|>"
        ids = self._tokenizer.encode(answer, add_special_tokens=False).ids
        return Line(
            ids,
            self._tokenizer.get_vocab_size(),
            hold_at=line.get("hold_at"),
            pace_s=line.get("pace_s", 0.0),
        )


class ScriptedRunner(BatchRunner):
    """The real runner, with a model that follows the script."""

    def load(self) -> LoadedModel:
        return replace(super().load(), constraint=Script().line)


if __name__ == "__main__":
    vars(worker.composition)["BatchRunner"] = ScriptedRunner
    sys.exit(worker.main.main())
