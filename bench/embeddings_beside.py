"""How long do running streams pause while vectors are computed beside them?

``python -m bench.embeddings_beside [--streams 3] [--seconds 20] [--rounds 3] [--markdown FILE]``.
Clients stream answers of the demo model from a service without a pause, first alone and then beside
each load of requests for vectors. The embedding model is random, of the shape of Qwen3-Embedding
with fewer layers. A gap is the time between two tokens of one answer at the client.
"""

from __future__ import annotations

import argparse
import asyncio
import http.client
import json
import os
import platform
import statistics
import tempfile
import threading
import time
from collections import defaultdict
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any, Final

import uvloop

from bench.client import StreamTrace, stream_chat
from bench.figures import percentile
from bench.serving import bodies
from tests.support.models.tiny_embedder import make_tiny_embedder
from tests.support.processes.service import Service

HOST: Final = "127.0.0.1"
ALONE: Final = "none"
#: Bodies of requests, without the model, by the name of the load.
LOADS: Final[Mapping[str, dict[str, Any]]] = {
    "64 short texts": {"input": [f"Bees dance in hive {number}." for number in range(64)]},
    "2 long texts": {"input": [[7] * 1500] * 2, "encoding_format": "base64"},
    "2,048 vectors as numbers": {"input": [[number % 500] for number in range(2048)]},
}
#: Clients that send the load, each without a pause.
CLIENTS: Final = 2
REPLY_WITHIN_S: Final = 600.0
SHAPE: Final[Mapping[str, Any]] = {"hidden_size": 256, "intermediate_size": 768}


@dataclass(frozen=True, slots=True)
class Row:
    """One load in one round; times in milliseconds, rates a second."""

    gap_p50: float
    gap_p99: float
    gap_max: float
    tokens: float
    ttft_p50: float
    vectors: float


class Load:
    """Clients that request vectors until they are stopped.

    Args:
        port: Of the service.
        body: The request; ``None`` for no load.
    """

    def __init__(self, port: int, body: dict[str, Any] | None) -> None:
        self._port = port
        self._clients = 0 if body is None else CLIENTS
        self._texts = 0 if body is None else len(body["input"])
        self._body = json.dumps({"model": "notes"} | (body or {}))
        self._stopped = threading.Event()
        self.vectors = 0

    @contextmanager
    def running(self) -> Iterator[None]:
        """Send requests meanwhile; the last ones are awaited."""
        clients = [threading.Thread(target=self._run) for _ in range(self._clients)]
        for client in clients:
            client.start()
        try:
            yield
        finally:
            self._stopped.set()
            for client in clients:
                client.join()

    def _run(self) -> None:
        while not self._stopped.is_set():
            link = http.client.HTTPConnection(HOST, self._port, timeout=REPLY_WITHIN_S)
            link.request("POST", "/v1/embeddings", self._body)
            reply = link.getresponse()
            content = reply.read()
            assert reply.status == http.client.OK, content[:1000]
            link.close()
            self.vectors += self._texts


async def _stream(port: int, body: dict[str, Any], end_s: float) -> list[StreamTrace]:
    traces = []
    while time.perf_counter() < end_s:
        traces.append(await stream_chat(HOST, port, body))
    return traces


async def _streams(port: int, requests: list[dict[str, Any]], seconds: float) -> list[StreamTrace]:
    end_s = time.perf_counter() + seconds
    found = await asyncio.gather(*(_stream(port, body, end_s) for body in requests))
    return [trace for traces in found for trace in traces]


def measure(service: Service, name: str, number: int, streams: int, seconds: float) -> Row:
    """Stream for ``seconds`` beside a load and return the figures."""
    requests = bodies(streams, number, "semantic-demo")
    load = Load(service.port, LOADS.get(name))
    began = time.perf_counter()
    with load.running():
        traces = uvloop.run(_streams(service.port, requests, seconds))
    vectors = load.vectors / (time.perf_counter() - began)
    gaps = [
        1000 * (later - earlier)
        for trace in traces
        for earlier, later in zip(trace.tokens, trace.tokens[1:], strict=False)
    ]
    return Row(
        gap_p50=percentile(gaps, 0.5),
        gap_p99=percentile(gaps, 0.99),
        gap_max=max(gaps),
        tokens=1000 * len(gaps) / sum(gaps),
        ttft_p50=percentile([1000 * (one.tokens[0] - one.sent) for one in traces], 0.5),
        vectors=vectors,
    )


def table(rows: Mapping[str, list[Row]]) -> Iterator[str]:
    """Yield the lines of a Markdown table: medians of the rounds, and the longest gap of all."""
    yield (
        "| vectors beside | gap p50 ms | p99 | max | tok/s of a stream | of alone "
        "| TTFT p50 ms | vectors/s |"
    )
    yield "|---|--:|--:|--:|--:|--:|--:|--:|"
    alone = rows[ALONE]
    for name, found in rows.items():
        share = statistics.median(
            one.tokens / other.tokens for one, other in zip(found, alone, strict=True)
        )
        medians = [
            statistics.median(getattr(one, part) for one in found)
            for part in ("gap_p50", "gap_p99", "tokens", "ttft_p50", "vectors")
        ]
        longest = max(one.gap_max for one in found)
        p50, p99, tokens, ttft, vectors = medians
        yield (
            f"| {name} | {p50:.0f} | {p99:.0f} | {longest:.0f} | {tokens:.1f} | {share:.0%} "
            f"| {ttft:.0f} | {vectors:.0f} |"
        )


def main() -> None:
    """Measure and print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--streams", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=20.0)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("--markdown", type=Path, help="also write the table to this file")
    options = parser.parse_args()
    rows: defaultdict[str, list[Row]] = defaultdict(list)
    with tempfile.TemporaryDirectory() as place:
        directory = Path(place)
        notes = make_tiny_embedder(
            directory / "notes", context=4096, layers=options.layers, head_dim=64, **SHAPE
        )
        config = directory / "semantic.toml"
        config.write_text(f'[models.notes]\nsource = "{notes}"\n')
        service = Service(directory / "data", env={"SEMANTIC_CONFIG": str(config)}).start()
        try:
            for number in range(options.rounds):
                for name in (ALONE, *LOADS):
                    row = measure(service, name, number, options.streams, options.seconds)
                    rows[name].append(row)
                    print(name, row, flush=True)
        finally:
            service.stop()
    conditions = (
        f"{platform.system()} {platform.machine()}, mlx {version('mlx')}, "
        f"{options.streams} streams, {options.rounds} rounds of {options.seconds:.0f} s, "
        f"load {os.getloadavg()[1]:.1f}."
    )
    text = "\n".join((*table(rows), "", conditions))
    print(text)
    if options.markdown:
        options.markdown.write_text(text + "\n")


if __name__ == "__main__":
    main()
