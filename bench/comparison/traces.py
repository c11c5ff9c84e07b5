"""Sessions of coding agents from the traces of kv-cache-tester, scaled down. Pure but for reading.

A trace has the lengths of prompts and answers, and for each block of 64 tokens of a prompt a number
that other prompts of the trace share where they begin alike. It holds no text: words stand in.
"""

from __future__ import annotations

import itertools
import json
import random
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from bench.comparison.conversation import ADJECTIVES, PLACES, THINGS

_WORDS: Final = (*ADJECTIVES, *THINGS, *PLACES)
_ANSWER_TOKENS: Final = (8, 48)


@dataclass(frozen=True, slots=True, kw_only=True)
class Sizes:
    """How much of the traces is replayed.

    Attributes:
        scale: A prompt has one token for so many of the trace; divides 64.
        sessions: All run at once.
        turns: Of a session, from its first.
        prompt_tokens: Sessions with a longer prompt among those turns are left out.
    """

    scale: int
    sessions: int
    turns: int
    prompt_tokens: int


def read_sessions(folder: Path, sizes: Sizes, salt: str) -> list[dict[str, Any]]:
    """Return sessions in the format of agentic-bench.

    Args:
        folder: Holds the traces.
        salt: Sessions of another salt share no text.

    Raises:
        LookupError: The folder has too few traces of that size.
    """
    found = []
    for file in sorted(folder.glob("trace_*.json")):
        session = session_of(json.loads(file.read_text(encoding="utf-8")), sizes, salt)
        longest = max((turn["input_tokens"] for turn in session["turns"]), default=0)
        if len(session["turns"]) > 1 and longest <= sizes.prompt_tokens:
            found.append(session)
        if len(found) == sizes.sessions:
            return found
    raise LookupError(f"{len(found)} of {sizes.sessions} traces of this size in {folder}")


def session_of(trace: dict[str, Any], sizes: Sizes, salt: str) -> dict[str, Any]:
    """Return the turns of a trace up to the first prompt that does not continue the last one."""
    tokens = trace["block_size"] // sizes.scale
    head = (trace["tool_tokens"] + trace["system_tokens"]) // trace["block_size"]
    salt = f"{salt} {trace['id']}"
    known: list[int] = []
    turns: list[dict[str, Any]] = []
    for request in trace["requests"][: sizes.turns]:
        blocks = request.get("hash_ids", [])
        # The last block is often full only in the next prompt.
        shared = max(len(known) - 1, 0)
        if len(blocks) <= len(known) or blocks[:shared] != known[:shared]:
            break
        # The last answer is a message of its own.
        answered = turns[-1]["output_tokens"] // tokens if turns else head - len(known)
        fresh = blocks[len(known) + answered :] or blocks[-1:]
        output = min(max(request["out"] // sizes.scale, _ANSWER_TOKENS[0]), _ANSWER_TOKENS[1])
        turns.append(
            {
                "index": len(turns),
                "input_delta": [{"role": "user", "content": _text(fresh, tokens, salt)}],
                "assistant_text": _text([-len(turns)], output, salt),
                "input_tokens": len(blocks) * tokens,
                "output_tokens": output,
            }
        )
        known = blocks
    system = _text(known[:head], tokens, salt)
    return {"session_id": trace["id"], "system_prompt": system, "turns": turns}


def _text(blocks: Sequence[int], tokens: int, salt: str) -> str:
    """Return one word, which is about one token, for each token of some blocks."""
    words = (random.Random(f"{salt} {block}").choices(_WORDS, k=tokens) for block in blocks)
    return " ".join(itertools.chain.from_iterable(words))
