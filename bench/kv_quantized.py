"""What do 8-bit blocks save, cost and change, compared with exact blocks?

``python -m bench.kv_quantized`` prints two Markdown tables: bytes and milliseconds per block at the
shapes of real models, and the changes of keys, values and answers. For the second, each prompt is
computed once, cut into blocks, and restored twice: from exact and from 8-bit blocks. Then both
compute the same tokens, those most likely with exact blocks, and their logits are compared. Where
the most likely token is always the same, so is the answer.
"""

from __future__ import annotations

import argparse
import random
import statistics
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple

import mlx.core as mx
import mlx_lm.utils
from mlx.utils import tree_map
from mlx_lm.models import falcon_h1, gemma3_text, llama

from domain.kv.spec import BLOCK_TOKENS, LayerKind, LayerSpec, ModelCacheSpec
from ops.setting_groups import DEMO_MODEL
from worker.cachestore.tier import Storage
from worker.engine.mlx.kv.arrays import BlockArrays
from worker.engine.mlx.kv.codec import BlockCodec
from worker.engine.mlx.kv.gather import gather
from worker.engine.mlx.kv.probe import probe_spec
from worker.engine.mlx.kv.split import extract
from worker.engine.mlx.kv.window_cache import make_row_caches
from worker.engine.mlx.model.loader import find_model

RUNS = 7
ANSWER_TOKENS = 48
#: Layers, KV heads and head_dim of widely used models.
SHAPES = {"135M": (30, 3, 64), "1.5B": (28, 2, 128), "8B": (32, 8, 128)}
VOCABULARY = 256
_TINY: dict[str, Any] = {
    "hidden_size": 128,
    "intermediate_size": 256,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 64,
    "rms_norm_eps": 1e-5,
    "rope_theta": 10000.0,
    "vocab_size": VOCABULARY,
    "max_position_embeddings": 4096,
    "tie_word_embeddings": False,
}
_MAMBA = {
    "mamba_d_ssm": 128,
    "mamba_d_head": 32,
    "mamba_n_heads": 4,
    "mamba_d_state": 16,
    "mamba_d_conv": 4,
    "mamba_chunk_size": 32,
}
_WINDOWS = {"sliding_window": 128, "sliding_window_pattern": 3, "query_pre_attn_scalar": 64.0}
#: The first turns of a conversation with the demo model; they repeat until the prompt is long.
_TURNS = (
    ("What is the capital of France?", "The capital of France is Paris."),
    ("What is 3 plus 4?", "3 plus 4 is 7."),
    ("Name a colour.", "Blue is a colour."),
    ("Say hello.", "Hello! How can I help you?"),
    ("Count to 5.", "1, 2, 3, 4, 5"),
    ("What is the opposite of hot?", "The opposite of hot is cold."),
)
_QUESTIONS = (
    "What is the capital of Italy?",
    "Count to 10.",
    "Write a short story about a cat.",
    "What is 12 plus 7?",
    "List three animals.",
    "What can you do?",
)


class _Subject(NamedTuple):
    name: str
    network: Any
    prompts: list[list[int]]


class _Outcome(NamedTuple):
    """One prompt's errors of keys and values, and of the logits along the answer."""

    error_max: float
    error_mean: float
    element_mean: float
    logits_max: float
    spread: float
    equal: int
    identical: bool


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--prompts", type=int, default=24, help="for each model")
    parser.add_argument("--tokens", type=int, default=700, help="in each prompt, about")
    given = parser.parse_args()
    print(
        "| KV shape, bfloat16 | MB exact | MB int8 | share | write exact ms | write int8 ms", end=""
    )
    print(" | read exact ms | read int8 ms |\n|---|--:|--:|--:|--:|--:|--:|--:|")
    for name, shape in SHAPES.items():
        print(_costs(name, *shape), flush=True)
        mx.clear_cache()
    print(
        f"\n{given.prompts} prompts of about {given.tokens} tokens, {ANSWER_TOKENS} greedy tokens\n"
    )
    print(
        "| model | error of K and V, largest | mean | mean of K and V | logits differ by at most",
        end="",
    )
    print(" | spread of logits | equal greedy tokens | identical answers |")
    print("|---|--:|--:|--:|--:|--:|--:|--:|")
    for make in (_demo, _llama, _gemma3, _falcon_h1):
        print(_agreement(make(given.prompts, given.tokens)), flush=True)
        mx.clear_cache()


def _costs(name: str, layers: int, heads: int, dim: int) -> str:
    layer = LayerSpec(
        kind=LayerKind.FULL, kv_heads=heads, key_dim=dim, value_dim=dim, element_bytes=2
    )
    spec = ModelCacheSpec(layers=(layer,) * layers, dtype="bfloat16")
    shape = (1, heads, BLOCK_TOKENS, dim)
    tensors = {
        f"{index}.{part}": mx.random.normal(shape).astype(mx.bfloat16)
        for index in range(layers)
        for part in "kv"
    }
    mx.eval(tensors)
    block = BlockArrays(BLOCK_TOKENS, tensors)
    sizes, writes, reads = [], [], []
    for storage in Storage:
        codec = BlockCodec(spec, storage)
        payload = codec.encode(block)
        sizes.append(sum(raw.nbytes for raw in payload.values()))
        writes.append(_best_ms(partial(codec.encode, block)))
        reads.append(_best_ms(partial(codec.decode, payload, BLOCK_TOKENS)))
    times = " | ".join(f"{figure:.1f}" for figure in (*writes, *reads))
    return (
        f"| {name}: {layers} x {heads} x {dim} | {sizes[0] / 1e6:.2f} | {sizes[1] / 1e6:.2f}"
        f" | {sizes[1] / sizes[0]:.3f} | {times} |"
    )


def _best_ms(work: Callable[[], object]) -> float:
    times = []
    for _ in range(RUNS):
        started = time.perf_counter()
        work()
        times.append(time.perf_counter() - started)
    return min(times) * 1e3


def _agreement(subject: _Subject) -> str:
    spec = probe_spec(subject.network)
    outcomes = [_compare(subject.network, spec, prompt) for prompt in subject.prompts]
    equal = sum(outcome.equal for outcome in outcomes) / (len(outcomes) * ANSWER_TOKENS)
    identical = sum(outcome.identical for outcome in outcomes)
    return (
        f"| {subject.name}, {spec.dtype} | {max(o.error_max for o in outcomes):.3g}"
        f" | {statistics.mean(o.error_mean for o in outcomes):.3g}"
        f" | {statistics.mean(o.element_mean for o in outcomes):.3g}"
        f" | {max(o.logits_max for o in outcomes):.3g}"
        f" | {statistics.mean(o.spread for o in outcomes):.3g}"
        f" | {100 * equal:.2f} % | {identical} of {len(outcomes)} |"
    )


def _compare(network: Any, spec: ModelCacheSpec, prompt: Sequence[int]) -> _Outcome:
    held = len(prompt) - 1
    blocks = _read(network, spec, prompt[:held])
    codec = BlockCodec(spec, Storage.INT8)
    changed = [codec.decode(codec.encode(block), block.tokens) for block in blocks]
    answer, exact = _answer(network, _restored(network, spec, blocks), prompt[held])
    _, other = _answer(network, _restored(network, spec, changed), prompt[held], answer)
    same = mx.argmax(other, axis=1) == mx.array(answer)
    errors, elements = zip(*_errors(blocks, changed), strict=True)
    return _Outcome(
        error_max=max(float(error.max()) for error in errors),
        error_mean=statistics.mean(float(error.mean()) for error in errors),
        element_mean=statistics.mean(elements),
        logits_max=float(mx.abs(exact - other).max()),
        spread=float(mx.std(exact, axis=1).mean()),
        equal=int(same.sum()),
        identical=bool(same.all()),
    )


def _read(network: Any, spec: ModelCacheSpec, tokens: Sequence[int]) -> list[BlockArrays]:
    """Compute tokens as the engine does; return all blocks, the tail last."""
    caches = make_row_caches(network)
    blocks = []
    for start in range(0, len(tokens), spec.block_tokens):
        piece = tokens[start : start + spec.block_tokens]
        network(mx.array([piece]), cache=caches)
        stop = start + len(piece)
        block = extract(caches, start, stop, cached_tokens=stop)
        assert block is not None
        blocks.append(block)
    return blocks


def _restored(network: Any, spec: ModelCacheSpec, blocks: Sequence[BlockArrays]) -> list[Any]:
    whole = [block for block in blocks if block.tokens == spec.block_tokens]
    tail = blocks[-1] if len(whole) < len(blocks) else None
    tail_tokens = 0 if tail is None else tail.tokens
    return gather(spec, whole, tail, tail_tokens, lambda: make_row_caches(network))


def _answer(
    network: Any, caches: list[Any], last: int, forced: Sequence[int] | None = None
) -> tuple[list[int], mx.array]:
    """Return the tokens that were computed, the most likely or the forced ones, and all logits."""
    tokens: list[int] = []
    seen = []
    token = last
    for at in range(ANSWER_TOKENS):
        logits = network(mx.array([[token]]), cache=caches)[0, -1].astype(mx.float32)
        mx.eval(logits)
        seen.append(logits)
        token = int(mx.argmax(logits)) if forced is None else forced[at]
        tokens.append(token)
    return tokens, mx.stack(seen)


def _errors(
    blocks: Sequence[BlockArrays], changed: Sequence[BlockArrays]
) -> list[tuple[mx.array, float]]:
    """Return the errors of each tensor of keys or values, and the mean size of its elements."""
    return [
        (
            mx.abs(tensor.astype(mx.float32) - other.tensors[name].astype(mx.float32)),
            float(mx.abs(tensor.astype(mx.float32)).mean()),
        )
        for block, other in zip(blocks, changed, strict=True)
        for name, tensor in block.tensors.items()
        if name.endswith((".k", ".v"))
    ]


def _demo(prompts: int, tokens: int) -> _Subject:
    network, tokenizer = mlx_lm.utils.load(str(find_model(DEMO_MODEL)))[:2]
    made = []
    for number in range(prompts):
        rng = random.Random(number)
        conversation: list[dict[str, str]] = []
        ids: list[int] = []
        while len(ids) < tokens:
            asked, answered = rng.choice(_TURNS)
            conversation.append({"role": "user", "content": asked})
            conversation.append({"role": "assistant", "content": answered})
            ask = {"role": "user", "content": _QUESTIONS[number % len(_QUESTIONS)]}
            ids = list(
                tokenizer.apply_chat_template([*conversation, ask], add_generation_prompt=True)
            )
        made.append(ids)
    return _Subject("demo model", network, made)


def _llama(prompts: int, tokens: int) -> _Subject:
    return _random_subject("random Llama", llama, {}, prompts, tokens)


def _gemma3(prompts: int, tokens: int) -> _Subject:
    return _random_subject("random Gemma 3, window 128", gemma3_text, _WINDOWS, prompts, tokens)


def _falcon_h1(prompts: int, tokens: int) -> _Subject:
    return _random_subject("random Falcon-H1, with states", falcon_h1, _MAMBA, prompts, tokens)


def _random_subject(
    name: str, module: Any, config: dict[str, Any], prompts: int, tokens: int
) -> _Subject:
    mx.random.seed(11)
    kind = module.__name__.rsplit(".", 1)[-1]
    network = module.Model(module.ModelArgs.from_dict({"model_type": kind} | _TINY | config))
    # Large weights, for sharp distributions; with small ones all tokens are about as likely.
    network.update(tree_map(lambda w: w * 3 if w.ndim == 2 else w, network.parameters()))
    mx.eval(network.parameters())
    rng = random.Random(5)
    made = [[rng.randrange(VOCABULARY) for _ in range(tokens)] for _ in range(prompts)]
    return _Subject(name, network, made)


if __name__ == "__main__":
    main()
