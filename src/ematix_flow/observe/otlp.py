"""What metrics and traces share for OpenTelemetry: endpoints, bounded exporters, the resource."""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Literal

from ematix_flow._version import __version__
from ematix_flow.observe.sink_urls import SinkEndpoint, parse_sink_url

if TYPE_CHECKING:
    from opentelemetry.sdk.resources import Resource

EXPORT_SECONDS = 2.0  # for one export, with all its retries
SCOPE = "ematix_flow"
GRPC_PORT, HTTP_PORT = 4317, 4318
_EXPORTER_LOGGERS = (
    "opentelemetry.exporter.otlp.proto.grpc.exporter",
    "opentelemetry.exporter.otlp.proto.http.metric_exporter",
    "opentelemetry.exporter.otlp.proto.http.trace_exporter",
    "opentelemetry.exporter.otlp.common.http",
)

Protocol = Literal["grpc", "http"]


def otlp_endpoint(url: str, what: str) -> tuple[Protocol, SinkEndpoint]:
    """Return protocol and endpoint: ``…+grpc://``, ``…+http://``, ``otlp://`` (HTTP; gRPC on port 4317)."""
    scheme = url.partition("://")[0]
    if scheme.endswith("+grpc"):
        return "grpc", parse_sink_url(url, what, GRPC_PORT)
    found = parse_sink_url(url, what, HTTP_PORT)
    return ("grpc" if scheme == "otlp" and found.port == GRPC_PORT else "http"), found


def http_url(to: SinkEndpoint, signal: Literal["metrics", "traces"]) -> str:
    """Return the URL of the signal; a given path is used as it is."""
    return to.url if to.path else f"{to.url}/v1/{signal}"


def resource() -> Resource:
    """Return our resource; ``OTEL_SERVICE_NAME`` and ``OTEL_RESOURCE_ATTRIBUTES`` win."""
    from opentelemetry.sdk.resources import Resource

    has_service_name = "OTEL_SERVICE_NAME" in os.environ or "service.name=" in os.environ.get(
        "OTEL_RESOURCE_ATTRIBUTES", ""
    )
    ours = {} if has_service_name else {"service.name": "ematix-flow"}
    return Resource.create({**ours, "service.version": __version__})


class _ExporterMessages(logging.Filter):
    """Keeps the exporters' messages of one thread out of the log; ``last_message`` is the last one."""

    def __init__(self) -> None:
        super().__init__()
        self._thread = threading.get_ident()
        self.last_message = ""

    def filter(self, record: logging.LogRecord) -> bool:
        if record.thread != self._thread:
            return True
        self.last_message = record.getMessage()
        return False


@contextmanager
def capture_exporter_messages() -> Iterator[_ExporterMessages]:
    """Capture the exporters' messages: they log each failure; we report it once."""
    messages = _ExporterMessages()
    loggers = [logging.getLogger(name) for name in _EXPORTER_LOGGERS]
    for logger in loggers:
        logger.addFilter(messages)
    try:
        yield messages
    finally:
        for logger in loggers:
            logger.removeFilter(messages)
