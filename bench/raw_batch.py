"""mlx-lm's BatchGenerator in a process of its own: the baseline of ``bench.together``.

It takes turns with the servers over standard input and output: its first line is its BLAS; then a
line is a JSON list of request bodies, the answer a JSON list of traces and their CPU seconds.
"""

from __future__ import annotations

import json
import sys
import time
from dataclasses import asdict
from typing import Any

from mlx_lm import load
from mlx_lm.generate import BatchGenerator
from mlx_lm.tokenizer_utils import TokenizerWrapper

from bench.blas import measured_blas
from bench.client import StreamTrace
from bench.experiments.report import log_to_stderr


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
