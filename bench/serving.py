"""What does serving cost, compared with the bare BatchGenerator and mlx-lm's own server?

    python -m bench.serving [--model DIR] [--rounds 5] [--streams 1 4 8] [--markdown FILE]
                            [--rivals DIR] [--no-prefill]

All contenders run all the time and take turns, so that other load hits all of them alike. Every
figure is the median over the rounds, and every share the median of the shares of a round. Prompts
differ between the streams of a burst and between rounds, so that no prefix cache affects them.
Prefill of a long prompt has a table of its own. ``--rivals`` adds mlx-vlm's server, if
``DIR/mlx-vlm`` is an environment that has it.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, Protocol

from bench.client import StreamTrace, chat_body, stream_together
from bench.comparison.adapters import MLX_LM, MLX_VLM, OFFLINE, SEMANTIC, Adapter
from bench.comparison.conversation import Conversations
from bench.comparison.server import Server
from bench.experiments.report import print_conditions
from bench.figures import Figures, figures_of, median_of

STREAMS = (1, 4, 8)
MAX_TOKENS = 200
#: Length of the prompt that is prefilled alone.
PROMPT_TOKENS = 2000
TOPICS = (
    *("a fox", "a boat", "the sea", "a clock", "the moon"),
    *("a bear", "a garden", "a train", "a queen", "a lamp"),
)


class Contender(Protocol):
    """A program that answers chat requests."""

    name: str

    def run(self, bodies: list[dict[str, Any]]) -> tuple[list[StreamTrace], float]:
        """Answer all requests at once; return the traces and the CPU seconds of its processes."""
        ...


class RawBatch(AbstractContextManager["RawBatch"]):
    """mlx-lm's BatchGenerator without a server."""

    name = "raw BatchGenerator"

    def __init__(self, model: Path) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "bench.raw_batch", str(model)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            # Linux divides the cores among sessions: the servers have one each, too.
            start_new_session=True,
        )
        self._answer()

    def run(self, bodies: list[dict[str, Any]]) -> tuple[list[StreamTrace], float]:
        """Send the requests over standard input."""
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(bodies) + "\n")
        self._process.stdin.flush()
        traces, cpu_s = self._answer()
        return [StreamTrace(**trace) for trace in traces], cpu_s

    def _answer(self) -> Any:
        assert self._process.stdout is not None
        return json.loads(self._process.stdout.readline())

    def __exit__(self, *_exc: object) -> None:
        """End the process."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait(10)


class Served(AbstractContextManager["Served"]):
    """A server of OpenAI chat completions, in an environment of its own."""

    def __init__(self, adapter: Adapter, *, python: Path, model: Path, folder: Path) -> None:
        self.name = adapter.name
        data_dir = folder / adapter.name
        self._server = Server(adapter, python=python, model=model, data_dir=data_dir)
        self._server.start()

    def run(self, bodies: list[dict[str, Any]]) -> tuple[list[StreamTrace], float]:
        """Send the requests over HTTP, all at once."""
        before = self._server.cpu_s()
        traces = stream_together(self._server.base_url, bodies)
        return traces, self._server.cpu_s() - before

    def __exit__(self, *_exc: object) -> None:
        """Stop the server."""
        self._server.kill()


def bodies(streams: int, round_number: int, model: str) -> list[dict[str, Any]]:
    """Return as many different requests as there are streams."""
    asked = (f"Round {round_number}. Tell me a long story about {topic}." for topic in TOPICS)
    return [
        chat_body(model, [{"role": "user", "content": text}], MAX_TOKENS)
        for text, _ in zip(asked, range(streams), strict=False)
    ]


@dataclass(slots=True)
class Measurements:
    """The results of all rounds.

    Attributes:
        bursts: By number of streams and contender.
        prefill: Tokens per second by contender.
    """

    bursts: defaultdict[tuple[int, str], list[Figures]] = field(
        default_factory=lambda: defaultdict(list)
    )
    prefill: defaultdict[str, list[float]] = field(default_factory=lambda: defaultdict(list))


def measure(
    model: Path, rounds: int, all_streams: Sequence[int], *, rivals: Path | None, prefills: bool
) -> Measurements:
    """Run the contenders in turn."""
    taken = Measurements()
    conversations = Conversations(model, PROMPT_TOKENS) if prefills else None
    with ExitStack() as stack:
        data_dir = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        contenders: list[Contender] = [
            stack.enter_context(RawBatch(model)),
            *(
                stack.enter_context(
                    Served(one, python=Path(sys.executable), model=model, folder=data_dir)
                )
                for one in (SEMANTIC, MLX_LM)
            ),
        ]
        if rivals is not None:
            python = rivals.absolute() / MLX_VLM.distribution / "bin" / "python"
            # Without its prefix cache.
            plain = replace(MLX_VLM, variables=OFFLINE)
            server = Served(plain, python=python, model=model, folder=data_dir)
            contenders.append(stack.enter_context(server))
        for round_number in range(rounds + 1):
            # Round 0 is the warm-up.
            into = taken if round_number else Measurements()
            turn = _rotated(contenders, round_number)
            for streams in all_streams:
                for contender in turn:
                    traces, cpu_s = contender.run(bodies(streams, round_number, str(model)))
                    into.bursts[streams, contender.name].append(figures_of(traces, cpu_s))
            if conversations is not None:
                # A prompt that no server has cached.
                prompt = conversations.begin(f"prefill {round_number}")
                body = chat_body(str(model), prompt, 1)
                for contender in turn:
                    (trace,), _ = contender.run([body])
                    into.prefill[contender.name].append(tokens_per_s(trace))
            print(f"round {round_number} of {rounds} done", flush=True)
    return taken


def _rotated(contenders: list[Contender], by: int) -> list[Contender]:
    by %= len(contenders)
    return contenders[by:] + contenders[:by]


def table(bursts: Mapping[tuple[int, str], Sequence[Figures]]) -> Iterable[str]:
    """Yield the lines of a Markdown table."""
    yield (
        "| streams | contender | tok/s | of raw | decode tok/s | of raw | CPU ms/token | of raw "
        "| TTFT p50 ms | p95 | gap p50 ms | p99 |"
    )
    yield "|---|---|--:|--:|--:|--:|--:|--:|--:|--:|--:|--:|"
    for (streams, name), figures in sorted(bursts.items(), key=lambda entry: entry[0][0]):
        one, raw = median_of(figures), bursts[streams, RawBatch.name]
        yield (
            f"| {streams} | {name} "
            f"| {one.tokens_per_s:.0f} | {_share(figures, raw, 'tokens_per_s')} "
            f"| {one.decode_per_s:.0f} | {_share(figures, raw, 'decode_per_s')} "
            f"| {one.cpu_ms_a_token:.2f} | {_share(figures, raw, 'cpu_ms_a_token')} "
            f"| {one.ttft_p50_ms:.1f} | {one.ttft_p95_ms:.1f} "
            f"| {one.gap_p50_ms:.1f} | {one.gap_p99_ms:.1f} |"
        )


def tokens_per_s(trace: StreamTrace) -> float:
    """Return prompt tokens over the time to the first token."""
    return trace.prompt_tokens / (trace.tokens[0] - trace.sent)


def prefill_table(rounds: Mapping[str, Sequence[float]], yardstick: str) -> Iterator[str]:
    """Yield the lines of a Markdown table of medians over the rounds."""
    yield f"| prefill of {PROMPT_TOKENS:,} tokens | tok/s | of raw |"
    yield "|---|--:|--:|"
    of_raw = statistics.median(rounds[yardstick])
    for name, figures in rounds.items():
        median = statistics.median(figures)
        yield f"| {name} | {median:,.0f} | {median / of_raw:.0%} |"


def as_json(taken: Measurements) -> dict[str, Any]:
    """Return the figures of each round."""
    bursts = [
        {"streams": streams, "contender": name, "rounds": [asdict(one) for one in rounds]}
        for (streams, name), rounds in sorted(taken.bursts.items(), key=lambda one: one[0][0])
    ]
    return {"bursts": bursts, "prefill": dict(taken.prefill)}


def _share(figures: Sequence[Figures], raw: Sequence[Figures], name: str) -> str:
    shares = [getattr(a, name) / getattr(b, name) for a, b in zip(figures, raw, strict=True)]
    return f"{statistics.median(shares):.0%}"


def main() -> None:
    """Measure and print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", type=Path, default=Path("worker/demo_model"))
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--markdown", type=Path, help="also write the table to this file")
    parser.add_argument("--json", type=Path, help="write the figures of each round to this file")
    parser.add_argument("--streams", type=int, nargs="+", default=list(STREAMS))
    parser.add_argument("--rivals", type=Path, help="folder of environments, as bench.comparison")
    parser.add_argument("--no-prefill", action="store_true", help="leave out the long prompts")
    options = parser.parse_args()
    if max(options.streams) > len(TOPICS):
        parser.error(f"at most {len(TOPICS)} streams")
    began = time.monotonic()
    taken = measure(
        options.model.absolute(),
        options.rounds,
        options.streams,
        rivals=options.rivals,
        prefills=not options.no_prefill,
    )
    lines = [
        *table(taken.bursts),
        "",
        *([] if options.no_prefill else [*prefill_table(taken.prefill, RawBatch.name), ""]),
        f"{options.rounds} rounds, {MAX_TOKENS} tokens at most.",
    ]
    text = "\n".join(lines)
    print(text)
    print_conditions(began)
    if options.json:
        options.json.write_text(json.dumps(as_json(taken), indent=1) + "\n")
    if options.markdown:
        options.markdown.write_text(text + "\n")


if __name__ == "__main__":
    main()
