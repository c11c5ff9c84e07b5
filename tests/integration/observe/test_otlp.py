"""Spans at a real OTLP receiver, at a dead one, and without the extra."""

from __future__ import annotations

import socket
import sys

import pytest
import structlog
from pydantic import ValidationError
from structlog.testing import capture_logs

from domain.log.trace import TraceContext, new_trace
from ops.observe.open import open_spans, sample_ratio
from ops.observe.span import Span, SpanKind, SpanSink
from ops.settings.service import TracingSettings
from tests.support.clients.otlp_receiver import OtlpReceiver, otlp_receiver

LOGGER = structlog.stdlib.get_logger()


def opened(**settings: object) -> SpanSink:
    wanted = TracingSettings(**settings)  # type: ignore[arg-type]
    return open_spans(wanted, part="worker", logger=LOGGER)


def example(trace: TraceContext) -> Span:
    return Span(
        name="chat tiny",
        context=trace,
        parent_id="00f067aa0ba902b7",
        start_ns=1_000_000_000,
        end_ns=3_000_000_000,
        kind=SpanKind.CLIENT,
        attributes={"text": "é", "count": 7, "none": None, "list": ("a", "b"), "share": 0.5},
        links=[trace.derived("earlier")],
        error="worker_lost",
    )


def check_arrival(receiver: OtlpReceiver, spans: SpanSink) -> None:
    trace = new_trace(sampled=True)
    spans.put(example(trace))
    spans.close()
    (got,) = receiver.of(trace.trace_id)
    assert (got.name, got.kind, got.error) == ("chat tiny", "CLIENT", "worker_lost")
    assert (got.span_id, got.parent_id) == (trace.span_id, "00f067aa0ba902b7")
    assert (got.start_ns, got.end_ns) == (1_000_000_000, 3_000_000_000)
    assert got.links == ((trace.trace_id, trace.derived("earlier").span_id),)
    expected = {"text": "é", "count": 7, "list": ["a", "b"], "share": 0.5}
    assert got.attributes == expected | {"error.type": "worker_lost"}
    assert got.resource["semantic.part"] == "worker"


@pytest.mark.parametrize("path", ["", "/", "/v1/traces"])
def test_a_receiver_of_the_settings_gets_all_of_a_span(path: str) -> None:
    with otlp_receiver() as receiver:
        check_arrival(receiver, opened(endpoint=receiver.url + path))
        assert receiver.spans[0].resource["service.name"] == "semantic"


def test_a_name_and_attributes_of_the_standard_variables_are_used(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with otlp_receiver() as receiver:
        monkeypatch.setenv("OTEL_SERVICE_NAME", "mine")
        monkeypatch.setenv("OTEL_RESOURCE_ATTRIBUTES", "deployment.environment.name=test")
        check_arrival(receiver, opened(endpoint=receiver.url))
        resource = receiver.spans[0].resource
        assert resource["service.name"] == "mine"
        assert resource["deployment.environment.name"] == "test"


def test_a_dead_receiver_costs_one_line_and_a_bounded_end() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))  # nobody listens there
        spans = opened(endpoint=f"http://127.0.0.1:{taken.getsockname()[1]}")
        with capture_logs() as lines:
            spans.put(example(new_trace(sampled=True)))
            spans.close()
    assert [line["event"] for line in lines if line["log_level"] != "info"] in (
        ["traces_not_exported"],
        [],  # still in its first try at the end
    )


def test_a_receiver_that_refuses_is_reported_once() -> None:
    with otlp_receiver() as receiver, capture_logs() as lines:
        receiver.status = 400
        spans = opened(endpoint=receiver.url)
        for count in (1, 2):
            spans.put(example(new_trace(sampled=True)))
            receiver.wait_for_requests(count)
        spans.close()
    events = [line["event"] for line in lines]
    assert events == ["traces_not_exported", "spans_dropped"]


def test_nothing_is_exported_while_tracing_is_off(monkeypatch: pytest.MonkeyPatch) -> None:
    assert not opened().is_on
    monkeypatch.setenv("OTEL_SDK_DISABLED", "true")
    assert not opened(endpoint="http://127.0.0.1:9").is_on


@pytest.mark.parametrize(
    ("ratio", "share"), [("0", 0.0), ("0.5", 0.5), ("1.5", 1.0), ("all", 1.0), (None, 1.0)]
)
def test_the_standard_variable_says_which_part_is_exported(
    monkeypatch: pytest.MonkeyPatch, ratio: str | None, share: float
) -> None:
    if ratio is None:
        monkeypatch.delenv("OTEL_TRACES_SAMPLER_ARG", raising=False)
    else:
        monkeypatch.setenv("OTEL_TRACES_SAMPLER_ARG", ratio)
    assert sample_ratio() == share


def test_tracing_without_the_extra_is_a_setting_that_is_not_valid(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name in ("opentelemetry.sdk", "opentelemetry.exporter"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    monkeypatch.setitem(sys.modules, "opentelemetry", None)
    with pytest.raises(ValidationError, match=r"pip install opentelemetry-sdk"):
        TracingSettings(endpoint="http://127.0.0.1:9")
    assert TracingSettings().endpoint is None
