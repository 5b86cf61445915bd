from __future__ import annotations

import subprocess
import sys

import pytest
from opentelemetry import trace
from opentelemetry.trace import SpanKind, StatusCode

from holdfast.telemetry.traces import (
    call_span,
    inject,
    mark_failed,
    record_call,
    record_response,
    request_span,
    run_span,
)

SUBMITTER = {"traceparent": "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"}


def test_a_runs_span_is_a_child_of_its_submitters_span(spans):
    with trace.get_tracer("submitter").start_as_current_span("submit"):
        carrier = inject()
    with run_span("run triage", carrier, {"holdfast.run_id": "r1"}):
        pass
    submit, run = spans.get_finished_spans()
    assert run.parent.span_id == submit.context.span_id
    assert run.context.trace_id == submit.context.trace_id
    assert run.kind is SpanKind.CONSUMER
    assert run.attributes == {"holdfast.run_id": "r1"}


def test_what_a_run_submits_continues_the_same_trace(spans):
    with run_span("run", SUBMITTER):
        carrier = inject()
    (run,) = spans.get_finished_spans()
    assert carrier["traceparent"].split("-")[1:3] == [
        SUBMITTER["traceparent"].split("-")[1],
        f"{run.context.span_id:016x}",
    ]


def test_a_trace_passes_through_a_worker_that_does_not_trace():
    with run_span("run", SUBMITTER):
        assert inject() == SUBMITTER
    assert inject() == {}


def test_a_run_without_a_submitters_span_starts_its_own_trace(spans):
    with run_span("run", {}):
        pass
    (run,) = spans.get_finished_spans()
    assert run.parent is None


def test_nobody_traces_then_there_is_no_span():
    with run_span("run", {}) as span:
        assert span is None
        mark_failed(span, "no matter")
        assert inject() == {}


def test_a_failed_outcome_is_told_by_the_status(spans):
    with run_span("run", SUBMITTER) as span:
        mark_failed(span, "server")
    (run,) = spans.get_finished_spans()
    assert (run.status.status_code, run.status.description) == (StatusCode.ERROR, "server")


@pytest.mark.parametrize(
    "carrier", [{"traceparent": "junk"}, {"traceparent": 7}, {"traceparent": None}, {"x": "y"}]
)
def test_a_broken_carrier_starts_a_new_trace_and_raises_nothing(spans, carrier):
    with run_span("run", carrier):
        pass
    (run,) = spans.get_finished_spans()
    assert run.parent is None


def test_an_exception_passes_through_and_is_recorded(spans):
    with pytest.raises(LookupError), run_span("run", SUBMITTER):
        raise LookupError("gone")
    (run,) = spans.get_finished_spans()
    assert run.status.status_code is StatusCode.ERROR


@pytest.mark.parametrize(
    ("code", "failed"),
    [("NOT_FOUND", False), ("RESOURCE_EXHAUSTED", False), ("CANCELLED", False), ("INTERNAL", True)],
)
def test_only_a_fault_of_its_server_makes_a_call_an_error(spans, code, failed):
    with pytest.raises(RuntimeError), call_span("host StopAgent", SUBMITTER) as span:
        try:
            raise LookupError("no such agent")
        except LookupError:
            aborted = RuntimeError("aborted")
            aborted.__context__ = LookupError("no such agent")
            record_call(span, code, aborted)
            raise aborted from None
    (call,) = spans.get_finished_spans()
    assert (call.kind, call.parent.is_remote) == (SpanKind.SERVER, True)
    assert call.attributes["rpc.response.status_code"] == code
    assert (call.status.status_code is StatusCode.ERROR) == failed
    assert [event.attributes["exception.message"] for event in call.events] == ["no such agent"] * failed


def test_a_call_that_is_answered_is_no_error(spans):
    with call_span("host Health", {}) as span:
        record_call(span, "OK", None)
    (call,) = spans.get_finished_spans()
    assert (call.status.status_code, call.events) == (StatusCode.UNSET, ())


@pytest.mark.parametrize(("status", "failed"), [(404, False), (429, False), (503, True)])
def test_a_request_that_is_the_servers_fault_has_its_exception(spans, status, failed):
    with request_span("GET", dict) as span:
        record_response(span, "GET", "/runs/{run_id}", status, LookupError("why"))
    (request,) = spans.get_finished_spans()
    assert (request.name, request.attributes["http.response.status_code"]) == ("GET /runs/{run_id}", status)
    assert (request.status.status_code is StatusCode.ERROR) == failed
    assert [event.attributes["exception.message"] for event in request.events] == ["why"] * failed


def test_an_untraced_worker_loads_neither_opentelemetry_nor_rich():
    code = (
        # redis-py loads the SDK for its own metrics where it is installed, as it is for these tests.
        "import sys; sys.modules['opentelemetry.sdk'] = None\n"
        "from holdfast.telemetry import exporter, logs, metrics, traces\n"
        "with traces.run_span('run', {}): traces.inject()\n"
        "logs.get_logger('x').error('warm')\n"
        "print(sorted({'opentelemetry.trace', 'rich', 'pydantic', 'typer', 'fastapi'} & set(sys.modules)))"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    assert run.stdout.strip() == "[]"
