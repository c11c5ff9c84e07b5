"""The programs that answer the same requests in turn: servers, and mlx-lm's bare generator.

``python -m bench.together.contenders MODEL`` is that generator. It takes turns with the servers
over standard input and output: its first line is its BLAS; then a line is a JSON list of request
bodies, the answer a JSON list of traces and their CPU seconds.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from contextlib import AbstractContextManager
from dataclasses import asdict
from pathlib import Path
from typing import Any, Protocol

from mlx_lm import load
from mlx_lm.generate import BatchGenerator
from mlx_lm.tokenizer_utils import TokenizerWrapper

from bench.blas import measured_blas
from bench.client import StreamTrace
from bench.comparison.server import ROOT
from bench.report.section import log_to_stderr

RAW = "raw BatchGenerator"


class Contender(Protocol):
    """A program that answers chat requests.

    Attributes:
        keeps_prompts: Whether it can reuse what it knows of an earlier prompt.
    """

    name: str
    keeps_prompts: bool

    def run(self, bodies: list[dict[str, Any]]) -> tuple[list[StreamTrace], float]:
        """Answer all requests at once; return the traces and the CPU seconds of its processes."""
        ...


class RawBatch(AbstractContextManager["RawBatch"]):
    """mlx-lm's BatchGenerator without a server.

    Attributes:
        blas: Library, threads and GFLOPS of its matrix products.
    """

    name = RAW
    keeps_prompts = False

    def __init__(self, model: Path) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "bench.together.contenders", str(model)],
            cwd=ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            # Linux divides the cores among sessions: the servers have one each, too.
            start_new_session=True,
        )
        self.blas = self._answer()

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


def main() -> None:
    """Load the model named on the command line, then answer line by line."""
    log_to_stderr()
    blas = measured_blas()
    model, tokenizer, *_ = load(sys.argv[1])
    print(json.dumps(blas), flush=True)
    for line in sys.stdin:
        traces, cpu_s = run_batch(model, tokenizer, json.loads(line))
        print(json.dumps([[asdict(trace) for trace in traces], cpu_s]), flush=True)


def run_batch(
    model: Any, tokenizer: TokenizerWrapper, bodies: list[dict[str, Any]]
) -> tuple[list[StreamTrace], float]:
    """Render, generate and detokenise all requests as one batch."""
    cpu_before = time.process_time()
    traces = [StreamTrace(sent=time.perf_counter()) for _ in bodies]
    prompts = [
        tokenizer.apply_chat_template(
            body["messages"], add_generation_prompt=True, **body["chat_template_kwargs"]
        )
        for body in bodies
    ]
    generator = BatchGenerator(
        model,
        stop_tokens=[[token] for token in tokenizer.eos_token_ids],
        completion_batch_size=len(bodies),
        prefill_batch_size=len(bodies),
    )
    uids = generator.insert(prompts, max_tokens=[body["max_tokens"] for body in bodies])
    by_uid = dict(zip(uids, traces, strict=True))
    for trace, prompt in zip(traces, prompts, strict=True):
        trace.prompt_tokens = len(prompt)
    # The property makes a new detokenizer each time.
    detokenizers = {uid: tokenizer.detokenizer for uid in uids}  # noqa: C420 - one for each
    open_uids = set(uids)
    while open_uids:
        for response in generator.next_generated():
            trace = by_uid[response.uid]
            if response.finish_reason != "stop":
                detokenizers[response.uid].add_token(response.token)
                trace.completion_tokens += 1
                trace.tokens.append(time.perf_counter())
            if response.finish_reason is not None:
                trace.done = time.perf_counter()
                open_uids.discard(response.uid)
    return traces, time.process_time() - cpu_before


if __name__ == "__main__":
    main()
