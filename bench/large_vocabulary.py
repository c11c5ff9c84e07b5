"""What do grammars and masks cost with the vocabulary size of large models?

No model is needed: a byte-level vocabulary is trained on the Python files of this interpreter and
saved. Times are processor time, which other programs disturb less.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import mlx.core as mx
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

from domain.chat.generation import NO_CLAIM
from worker.engine.grammar.answer_grammar import GrammarWriter
from worker.engine.grammar.guidance import GuidanceGrammars, grammars_for
from worker.engine.mlx.sampling.logit_masks import masked
from worker.engine.output.tool_calls.reader import JsonCallStyle, ToolFormat
from worker.engine.output.tool_calls.tool_syntax import GLM_SYNTAX, QWEN_SYNTAX

_TAGGED: Final = ToolFormat(start="<tool_call>", end="</tool_call>")
_END: Final = "<|im_end|>"
_TRAINING_BYTES: Final = 160_000_000
_CODE: Final = Path(__file__).parents[1] / "worker" / "engine" / "json_calls.py"
_CODE_CHARS: Final = 6000
_STEPS: Final = 20


def report(size: int, kept: Path, tools: Sequence[Mapping[str, Any]]) -> None:
    """Print the tables in Markdown.

    Args:
        size: Tokens of the vocabulary.
        kept: File of the vocabulary; created if it is missing.
        tools: The tools that calls may name.
    """
    if not kept.exists():
        _trained(size).save(str(kept))
    tokenizer = Tokenizer.from_file(str(kept))
    end_id = tokenizer.token_to_id(_END)
    assert end_id is not None, "not a vocabulary of ours"
    began = time.process_time()
    grammars = grammars_for(tokenizer.to_str(), {end_id})
    assert grammars is not None, "the library reads it"
    print(f"{tokenizer.get_vocab_size()} tokens, read in {time.process_time() - began:.1f} s\n")
    print(f"| {len(tools)} tools | first ms | again ms | mask µs | worst | take µs | mask bytes |")
    print("|---|--:|--:|--:|--:|--:|--:|")
    for name, (tool_format, call) in _calls(_CODE.read_text()[:_CODE_CHARS]).items():
        print(f"| {name} | {_row(grammars, tokenizer, tool_format, call, tools)} |")
    print("\n| rows | putting masks on, ms of processor time | with top_p |\n|--:|--:|--:|")
    for rows in (1, 4, 8):
        plain, shared = (
            _applying_ms(rows, tokenizer.get_vocab_size(), is_shared=is_shared)
            for is_shared in (False, True)
        )
        print(f"| {rows} | {plain:.1f} | {shared:.1f} |")


def _calls(code: str) -> Mapping[str, tuple[ToolFormat, str]]:
    arguments = {"file_path": "/a/b.py", "content": code}
    call = json.dumps({"name": "Write", "arguments": arguments}, ensure_ascii=False)
    parameters = "".join(
        f"<parameter={key}>\n{value}\n</parameter>\n" for key, value in arguments.items()
    )
    pairs = "".join(
        f"<arg_key>{key}</arg_key><arg_value>{value}</arg_value>"
        for key, value in arguments.items()
    )
    return {
        "JSON (Hermes)": (
            replace(_TAGGED, json=JsonCallStyle.TAGGED),
            f"\n{call}\n</tool_call>",
        ),
        "marks (Qwen3-Coder)": (
            replace(_TAGGED, syntax=QWEN_SYNTAX),
            f"\n<function=Write>\n{parameters}</function>\n</tool_call>",
        ),
        "marks (GLM)": (replace(_TAGGED, syntax=GLM_SYNTAX), f"Write{pairs}</tool_call>"),
    }


def _row(
    grammars: GuidanceGrammars,
    tokenizer: Tokenizer,
    tool_format: ToolFormat,
    call: str,
    tools: Sequence[Mapping[str, Any]],
) -> str:
    began = time.process_time()
    requested = grammars.of(NO_CLAIM)
    grammar = GrammarWriter(requested.refusal, requested.tag).calls(tool_format, tools)
    requested.matchers(grammar)
    compiled = time.process_time()
    matcher = requested.matchers(grammar)()
    first, again = compiled - began, time.process_time() - compiled
    spent = taken = worst = 0.0
    ids = tokenizer.encode(call).ids
    size = 0
    for token in ids:
        began = time.process_time()
        size = len(matcher.mask())
        found = time.process_time()
        fits = matcher.accept(token)
        taken += time.process_time() - found
        spent, worst = spent + found - began, max(worst, found - began)
        assert fits, "the call is one of the grammar"
    return (
        f"{1e3 * first:.0f} | {1e3 * again:.1f} | {1e6 * spent / len(ids):.0f} | "
        f"{1e6 * worst:.0f} | {1e6 * taken / len(ids):.0f} | {size}"
    )


def _applying_ms(rows: int, vocabulary: int, *, is_shared: bool) -> float:
    logprobs = mx.random.normal((rows, vocabulary))
    masks = dict.fromkeys(range(rows), b"\xa5" * (4 * -(-vocabulary // 32)))
    shared = range(rows) if is_shared else ()
    mx.eval(logprobs, masked(logprobs, masks, shared))
    began = time.process_time()
    for _ in range(_STEPS):
        mx.eval(masked(logprobs, masks, shared))
    return 1e3 * (time.process_time() - began) / _STEPS


def _trained(size: int) -> Tokenizer:
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    trainer = trainers.BpeTrainer(vocab_size=size, show_progress=False, initial_alphabet=alphabet)
    tokenizer.train_from_iterator(_texts(), trainer)
    tokenizer.add_special_tokens([_END])
    return tokenizer


def _texts() -> Iterator[str]:
    read = 0
    for place in filter(None, sys.path):
        for path in sorted(Path(place).rglob("*.py")):
            text = path.read_text(encoding="utf-8", errors="ignore")
            read += len(text)
            yield text
            if read > _TRAINING_BYTES:
                return
