"""What does prompt-lookup speculation win where answers copy, and cost where they do not?

``python -m bench.speculation [--rounds 5]`` prints Markdown. Runners with and without drafts take
turns every few steps in one process, on the same prompts; their tokens must be equal.

*Of CPU* is the ratio of tokens per CPU second, which
other programs on the machine disturb less.

The networks have the cost of any Llama of their shape, but their weights are chosen by hand, so
that what they do is exact: in the copying one, a head of the first layer looks back by the length
of the document, and the output layer maps some tokens to others (the edits). In the other ones that
head is silent, and each token depends on the one before and on the sampler.
"""

from __future__ import annotations

import argparse
import platform
import random
import statistics
import time
from dataclasses import dataclass, field, replace
from importlib.metadata import version
from typing import Any

import mlx.core as mx
from mlx_lm.models import llama

from domain.values import ModelCard, Sampling
from worker.engine.mlx.model.loaded_weights import LoadedWeights
from worker.engine.mlx.runner import BatchRunner
from worker.engine.output.detokenizer import ByteDetokenizer
from worker.engine.ports import Admission, LoadedModel, RenderedPrompt

LAYERS, HIDDEN, INNER, HEADS, DIM, VOCABULARY = 6, 128, 256, 4, 32, 256
#: Tokens of the document that an answer copies.
DOCUMENT = 200
START, SEPARATOR, END = 253, 254, 255
#: Tokens of documents, of which the first are those that the copying network replaces.
LETTERS, EDITED = 120, 8
#: Share of a document that is replaced.
EDITS = 0.05
STREAMS = (1, 4)
#: Steps of one runner before the other one takes its turn, so that both see the same noise.
TURN_STEPS = 8
_ROPE_BASE = 1000.0
#: Scale of a query of the head that looks back.
_SHARPNESS = 80.0
#: What the first normalisation makes of an element of 1: an embedding has the square norm 2.
_NORMED = (HIDDEN / 2) ** 0.5
_GREEDY = Sampling(temperature=0)


@dataclass(frozen=True, slots=True)
class Workload:
    """Answers of one kind.

    Attributes:
        name: In the table.
        copies: Whether the network copies the document.
        letters: Number of tokens that the other networks use.
        sampling: How tokens are drawn.
    """

    name: str
    copies: bool
    letters: int
    sampling: Sampling


WORKLOADS = (
    Workload("copies with 5 % edits", copies=True, letters=LETTERS, sampling=_GREEDY),
    Workload("never copies", copies=False, letters=LETTERS, sampling=Sampling(seed=3)),
    # Short passages recur by chance and go on in another way.
    Workload("repeats, never copies", copies=False, letters=18, sampling=Sampling(seed=3)),
)


@dataclass(slots=True)
class Side:
    """A runner with or without drafts, and what it did in a round.

    Attributes:
        runner: The runner.
        answers: Tokens by sequence.
        running: Sequences that have not ended.
        tokens: Tokens of the measured steps.
        seconds: Their duration.
        cpu_s: Their CPU seconds, of all threads.
    """

    runner: BatchRunner
    answers: dict[int, list[int]] = field(default_factory=dict)
    running: set[int] = field(default_factory=set)
    tokens: int = 0
    seconds: float = 0.0
    cpu_s: float = 0.0

    def join(self, workload: Workload, streams: int, seed: int) -> None:
        """Start a round, up to the first token of each stream."""
        self.runner.reset()
        self.answers, self.tokens, self.seconds, self.cpu_s = {}, 0, 0.0, 0.0
        for stream in range(streams):
            admission = Admission(
                tokens=_prompt(1000 * seed + stream, workload.letters),
                first_index=0,
                max_new_tokens=DOCUMENT,
                sampling=workload.sampling,
                arrival=stream,
            )
            admitted = self.runner.insert(admission)
            assert admitted is not None, "there is no limit of memory"
            self.answers[admitted.uid] = []
        self.running = set(self.answers)
        while not all(self.answers.values()):
            self._step()

    def measure(self) -> None:
        """Run some steps, the last pass included, which a step starts and does not wait for."""
        before = sum(map(len, self.answers.values()))
        self.runner.sequences.interrupt()
        started, cpu_s = time.perf_counter(), time.process_time()
        for _ in range(TURN_STEPS):
            if self.running:
                self._step()
        mx.synchronize(self.runner.sequences.stream)
        self.seconds += time.perf_counter() - started
        self.cpu_s += time.process_time() - cpu_s
        self.tokens += sum(map(len, self.answers.values())) - before

    def _step(self) -> None:
        for uid, token, finish in self.runner.step().tokens:
            self.answers[uid].append(token)
            if finish is not None:
                self.running.discard(uid)

    @property
    def rate(self) -> float:
        """Tokens a second."""
        return self.tokens / self.seconds


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    rounds = parser.parse_args().rounds
    print(f"{platform.system()} {platform.machine()}, mlx {version('mlx')}, {rounds} rounds\n")
    print(
        "| workload | streams | without tok/s | with tok/s | ratio | of CPU | drafted | accepted |"
    )
    print("|---|--:|--:|--:|--:|--:|--:|--:|")
    for workload in WORKLOADS:
        sides = _sides(workload)
        for streams in STREAMS:
            row = _row(sides, workload, streams, rounds)
            print(f"| {workload.name} | {streams} | {row} |", flush=True)


def _row(sides: tuple[Side, Side], workload: Workload, streams: int, rounds: int) -> str:
    without, drafting = sides
    figures = drafting.runner.drafts
    earlier = replace(figures)
    ratios, cpu_ratios, rates = [], [], []
    for seed in range(1, rounds + 1):
        for side in sides:
            side.join(workload, streams, seed)
        while any(side.running for side in sides):
            for side in sides:
                if side.running:
                    side.measure()
        answers = [list(side.answers.values()) for side in sides]
        assert answers[0] == answers[1], "drafts change no token"
        ratios.append(drafting.rate / without.rate)
        cpu_tokens = [side.tokens / side.cpu_s for side in sides]
        cpu_ratios.append(cpu_tokens[1] / cpu_tokens[0])
        rates.append((without.rate, drafting.rate))
    medians = (f"{statistics.median(side):.0f}" for side in zip(*rates, strict=True))
    ratio = f"{statistics.median(ratios):.2f} ({min(ratios):.2f} to {max(ratios):.2f})"
    cpu = f"{statistics.median(cpu_ratios):.2f}"
    drafted = figures.drafted_tokens - earlier.drafted_tokens
    accepted = figures.accepted_tokens - earlier.accepted_tokens
    return " | ".join([*medians, ratio, cpu, str(drafted), str(accepted)])


def _prompt(seed: int, letters: int) -> tuple[int, ...]:
    draw = random.Random(seed)
    document = [
        draw.randrange(EDITED) if draw.random() < EDITS else draw.randrange(EDITED, letters)
        for _ in range(DOCUMENT)
    ]
    return (START, *document, SEPARATOR)


def _sides(workload: Workload) -> tuple[Side, Side]:
    network = _network(copies=workload.copies, letters=workload.letters)
    sides = []
    for speculates in (False, True):
        runner = BatchRunner(
            load_weights=lambda: LoadedWeights(network, frozenset([END]), _model()),
            prefill_step_tokens=256,
        )
        runner.load()
        runner.speculates = speculates
        sides.append(Side(runner))
    return sides[0], sides[1]


def _network(*, copies: bool, letters: int) -> Any:
    """Return a network that copies the document, or draws each token from the one before."""
    mx.random.seed(1)
    network = llama.Model(
        llama.ModelArgs(
            model_type="llama",
            hidden_size=HIDDEN,
            num_hidden_layers=LAYERS,
            intermediate_size=INNER,
            num_attention_heads=HEADS,
            num_key_value_heads=HEADS,
            head_dim=DIM,
            rms_norm_eps=1e-5,
            vocab_size=VOCABULARY,
            max_position_embeddings=4096,
            rope_theta=_ROPE_BASE,
            tie_word_embeddings=False,
        )
    )
    for layer in network.layers:
        # What a layer computes is not added.
        layer.self_attn.o_proj.weight *= 0
        layer.mlp.down_proj.weight *= 0
    # An embedding is the code of its token, room for the code of a copied one, and a constant.
    codes = mx.random.normal((VOCABULARY, DIM))
    codes = codes / mx.linalg.norm(codes, axis=1, keepdims=True)
    room = mx.zeros((VOCABULARY, HIDDEN - DIM - 1))
    constant = mx.ones((VOCABULARY, 1))
    network.model.embed_tokens.weight = mx.concatenate([codes, room, constant], axis=1)
    if copies:
        _look_back(network.layers[0].self_attn)
        network.lm_head.weight = _edited(codes)
    else:
        network.lm_head.weight = _follower(letters)
    mx.eval(network.parameters())
    return network


def _look_back(attention: Any) -> None:
    """Make the first head add the code of the token ``DOCUMENT`` positions earlier."""
    pairs = DIM // 2
    angles = DOCUMENT * _ROPE_BASE ** (-mx.arange(pairs) / pairs)
    # All queries are equal and all keys are equal, so the score depends on the distance alone.
    query = _SHARPNESS * mx.concatenate([mx.cos(angles), -mx.sin(angles)])
    key = mx.concatenate([mx.ones(pairs), mx.zeros(pairs)])
    for projection, column in ((attention.q_proj, query), (attention.k_proj, key)):
        projection.weight = mx.zeros(projection.weight.shape)
        projection.weight[:DIM, -1] = column / _NORMED
    values = mx.zeros(attention.v_proj.weight.shape)
    values[:DIM, :DIM] = mx.eye(DIM) / _NORMED
    outputs = mx.zeros(attention.o_proj.weight.shape)
    outputs[DIM : 2 * DIM, :DIM] = mx.eye(DIM)
    attention.v_proj.weight, attention.o_proj.weight = values, outputs


def _edited(codes: mx.array) -> mx.array:
    """Return the output layer that names the copied token, or what replaces it."""
    source = list(range(VOCABULARY))
    source[END] = SEPARATOR
    source[LETTERS : LETTERS + EDITED] = range(EDITED)
    weights = mx.zeros((VOCABULARY, HIDDEN))
    weights[:, DIM : 2 * DIM] = codes[mx.array(source)]
    weights[:EDITED] = 0
    weights[SEPARATOR] = 0
    return weights


def _follower(letters: int) -> mx.array:
    """Return the output layer that prefers some letters after each, at random."""
    weights = mx.zeros((VOCABULARY, HIDDEN))
    weights[:, :DIM] = mx.random.normal((VOCABULARY, DIM)) / _NORMED
    token = mx.arange(VOCABULARY)
    weights[:, -1] = mx.where((token >= EDITED) & (token < letters), 0.0, -100.0)
    return weights


def _model() -> LoadedModel:
    card = ModelCard(
        id="bench",
        fingerprint="sha256:" + "0" * 64,
        context_length=4096,
        description="",
        created_at="2026-01-01T00:00:00Z",
    )
    return LoadedModel(
        card=card,
        think_tags=None,
        render=lambda *_: RenderedPrompt(()),
        opens_thinking=lambda _: False,
        detokenizer=lambda: ByteDetokenizer([]),
    )


if __name__ == "__main__":
    main()
