"""OpenTelemetry spans: one for each run with its stages below it, one for batches of streams.

A run is part of the trace that ``TRACEPARENT`` names. Without one it is its own trace, whose id is the run
id.
"""

from __future__ import annotations

import logging
import os
import sys
import time
import uuid
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from ematix_flow.errors import ConfigError
from ematix_flow.observe.observer import Observer, RunEnd, StreamBatch
from ematix_flow.observe.otlp import (
    EXPORT_SECONDS,
    SCOPE,
    capture_exporter_messages,
    http_url,
    otlp_endpoint,
    resource,
)
from ematix_flow.observe.sink_urls import missing_otel, unknown_scheme
from ematix_probe.redaction import mask

if TYPE_CHECKING:
    from opentelemetry.context import Context
    from opentelemetry.sdk.trace import ReadableSpan
    from opentelemetry.sdk.trace.export import SpanExporter, SpanExportResult
    from opentelemetry.sdk.trace.id_generator import IdGenerator
    from opentelemetry.trace import Span, Tracer

    from ematix_flow.state.runlog.records import RunRecord

KINDS = ("otel", "otel+otlp+grpc", "otel+otlp+http")
BATCHES_PER_MINUTE = 60  # spans of batches, of one stream
LONGEST_TEXT = 2_000
SEND_MILLISECONDS = 2_000.0
_log = logging.getLogger(__name__)


def open_traces(url: str) -> Observer:
    """``otel://stdout``, which writes to stderr, ``otel+otlp+grpc://…`` or ``otel+otlp+http://…``."""
    scheme, separator, rest = url.partition("://")
    if not separator or scheme not in KINDS:
        raise unknown_scheme(url, "traces", KINDS)
    if scheme == "otel" and rest != "stdout":
        raise ConfigError(
            f"the traces URL {url!r} names no place", next_step="write otel://stdout or otel+otlp+http://…"
        )
    try:
        if scheme == "otel":
            from opentelemetry.sdk.trace.export import ConsoleSpanExporter

            return SpanObserver(url, ConsoleSpanExporter(out=sys.stderr, formatter=_line))
        protocol, to = otlp_endpoint(url, "traces")
        address = http_url(to, "traces") if protocol == "http" else to.url
        return SpanObserver(f"{scheme}://{to.address}", _exporter(protocol, address))
    except ImportError as error:
        raise missing_otel(error) from error


class SpanObserver(Observer):
    """Turns events into spans. Another thread sends them, and no run waits for it."""

    def __init__(self, name: str, exporter: SpanExporter) -> None:
        from opentelemetry.sdk.trace import TracerProvider
        from opentelemetry.sdk.trace.export import BatchSpanProcessor

        self.name = f"traces sink {name}"
        self._ids = _trace_ids()
        self._provider = TracerProvider(
            resource=resource(), shutdown_on_exit=False, id_generator=self._ids.generator
        )
        processor = BatchSpanProcessor(
            _warn_once_exporter(exporter, self.name), schedule_delay_millis=SEND_MILLISECONDS
        )
        self._provider.add_span_processor(processor)
        self._tracer: Tracer = self._provider.get_tracer(SCOPE)
        self._runs: dict[str, Span] = {}
        self._batches: dict[str, _SpanLimit] = {}

    def run_started(self, record: RunRecord) -> None:
        self._ids.run_id = record.run_id
        self._runs[record.run_id] = self._tracer.start_span(
            "flow.pipeline.run" if record.mode != "stream" else "flow.stream.run",
            context=_parent_context(),
            start_time=_nanoseconds(record.started_at.timestamp()),
            attributes=_known_attributes(
                {
                    "flow.pipeline.name": record.pipeline,
                    "flow.pipeline.attempt": record.attempt,
                    "flow.run.id": record.run_id,
                    "flow.run.trigger": record.trigger,
                    "flow.run.slot": record.slot.isoformat() if record.slot else None,
                    "flow.run.mode": record.mode,
                    "flow.run.target": record.target,
                }
            ),
        )

    def stage_finished(self, record: RunRecord, target: str, stage: str, seconds: float) -> None:
        run = self._runs.get(record.run_id)
        if run is not None:
            now = time.time()
            self._child(run, stage, now - seconds, now, {"flow.stage": stage, "flow.target": target})

    def run_finished(self, record: RunRecord, ending: RunEnd) -> None:
        from opentelemetry.trace import StatusCode

        span = self._runs.pop(record.run_id, None)
        if span is None or record.finished_at is None:
            return
        rows = {
            f"flow.rows.{kind}": getattr(record.rows, kind)
            for kind in ("read", "inserted", "updated", "deleted", "unchanged")
        }
        tried_again = ending.will_retry if record.status == "failed" else None
        span.set_attributes(
            _known_attributes(
                {
                    "flow.run.status": record.status,
                    "flow.run.path": record.path,
                    "flow.run.tried_again": tried_again,
                    **rows,
                }
            )
        )
        ended = _nanoseconds(record.finished_at.timestamp())
        if record.error_message is not None:
            message = mask(record.error_message)[:LONGEST_TEXT]
            if record.status not in ("skipped", "locked"):
                span.set_status(StatusCode.ERROR, message)
            attributes = {"exception.type": record.error_type or "", "exception.message": message}
            span.add_event("exception", attributes, ended)
        span.end(ended)

    def batch_committed(self, batch: StreamBatch) -> None:
        """Each batch is its own trace: the trace of a stream could last for months."""
        few = self._batches.setdefault(batch.stream, _SpanLimit())
        if not few.allows_span():
            return
        now = time.time()
        began = now - sum(batch.seconds.values())
        self._ids.run_id = None
        span = self._tracer.start_span(
            "flow.stream.batch",
            context=_parent_context(),
            start_time=_nanoseconds(began),
            attributes={
                "flow.pipeline.name": batch.stream,
                "flow.batch.number": batch.number,
                "flow.rows.read": batch.rows_read,
                "flow.rows.written": sum(batch.rows_written.values()),
                "flow.dead_letters": batch.dead_letters,
                "flow.batches.without_span": few.take_left_out(),
            },
        )
        for phase, seconds in batch.seconds.items():
            self._child(span, phase, began, began + seconds, {"flow.stage": phase})
            began += seconds
        span.end(_nanoseconds(now))

    def close(self) -> None:
        self._provider.shutdown()

    def _child(self, parent: Span, name: str, began: float, ended: float, about: Mapping[str, str]) -> None:
        from opentelemetry.trace import set_span_in_context

        below = set_span_in_context(parent)
        attributes = {key: mask(value) for key, value in about.items()}
        span = self._tracer.start_span(
            f"flow.stage.{name}", context=below, start_time=_nanoseconds(began), attributes=attributes
        )
        span.end(_nanoseconds(ended))


class _SpanLimit:
    """Limits spans per minute and counts those left out."""

    def __init__(self) -> None:
        self._minute, self._taken, self._left_out = 0, 0, 0

    def allows_span(self) -> bool:
        minute = int(time.monotonic() // 60)
        if minute != self._minute:
            self._minute, self._taken = minute, 0
        self._taken += 1
        if self._taken > BATCHES_PER_MINUTE:
            self._left_out += 1
        return self._taken <= BATCHES_PER_MINUTE

    def take_left_out(self) -> int:
        """Return how many were left out before this one, and reset the count."""
        left, self._left_out = self._left_out, 0
        return left


class _TraceIds:
    """Gives the next trace the id of a run, so that each leads to the other."""

    def __init__(self, generator: IdGenerator) -> None:
        self.generator = generator
        self.run_id: str | None = None


def _trace_ids() -> _TraceIds:
    from opentelemetry.sdk.trace.id_generator import RandomIdGenerator

    class Generator(RandomIdGenerator):
        def generate_trace_id(self) -> int:
            if ids.run_id is None or by_share:
                return super().generate_trace_id()
            return uuid.UUID(ids.run_id).int

    # a ratio sampler uses the bits of a trace id, some of which are the same in every run id
    by_share = "ratio" in os.environ.get("OTEL_TRACES_SAMPLER", "")
    ids = _TraceIds(Generator())
    return ids


def _parent_context() -> Context:
    """Return the trace that this process is part of."""
    from opentelemetry.context import Context
    from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

    carrier = {name.lower(): os.environ[name] for name in ("TRACEPARENT", "TRACESTATE") if name in os.environ}
    return TraceContextTextMapPropagator().extract(carrier, context=Context())


def _exporter(protocol: str, address: str) -> SpanExporter:
    """Return the exporter.

    Its retries end with the timeout; headers come from ``OTEL_EXPORTER_OTLP_HEADERS``.
    """
    if protocol == "http":
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter as OverHttp

        return OverHttp(endpoint=address, timeout=EXPORT_SECONDS)
    from opentelemetry.exporter.otlp.proto.grpc.trace_exporter import OTLPSpanExporter as OverGrpc

    return OverGrpc(endpoint=address, insecure=address.startswith("http://"), timeout=EXPORT_SECONDS)


def _warn_once_exporter(exporter: SpanExporter, name: str) -> SpanExporter:
    """Return the exporter with only its first failure logged."""
    from opentelemetry.sdk.trace.export import SpanExporter, SpanExportResult

    class WarnOnceExporter(SpanExporter):
        complained = False

        def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
            with capture_exporter_messages() as messages:
                done = exporter.export(spans)
            if done is not SpanExportResult.SUCCESS and not self.complained:
                self.complained = True
                _log.warning("%s", mask(f"{name} could not report a run: {messages.last_message}"))
            return done

        def shutdown(self) -> None:
            exporter.shutdown()

    return WarnOnceExporter()


def _line(span: ReadableSpan) -> str:
    return f"{span.to_json(indent=None)}\n"


def _known_attributes(attributes: Mapping[str, Any]) -> dict[str, Any]:
    return {
        key: mask(value)[:LONGEST_TEXT] if isinstance(value, str) else value
        for key, value in attributes.items()
        if value is not None
    }


def _nanoseconds(moment: float) -> int:
    return int(moment * 1e9)
