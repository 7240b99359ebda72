"""A receiver of OpenTelemetry's protocol for tests: a real gRPC and a real HTTP server in this process.

It is no collector: it reads requests with the official classes of ``opentelemetry-proto``, keeps them, and
can be set to respond with an error, or not to respond.
"""

from __future__ import annotations

import gzip
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Literal

import grpc
from opentelemetry.proto.collector.metrics.v1 import metrics_service_pb2 as metrics_pb2
from opentelemetry.proto.collector.metrics.v1 import metrics_service_pb2_grpc as metrics_grpc
from opentelemetry.proto.collector.trace.v1 import trace_service_pb2 as trace_pb2
from opentelemetry.proto.collector.trace.v1 import trace_service_pb2_grpc as trace_grpc

Answer = Literal["well", "broken", "never"]


class OtlpReceiver:
    """Received data is in `spans` and `metrics`; ``release`` answers the clients that wait."""

    def __init__(self, answer: Answer = "well") -> None:
        self.answer = answer
        self.release = threading.Event()
        self.asked = threading.Event()
        self.headers: list[dict[str, str]] = []
        self._requests: list[Any] = []
        self._http = _Http(("127.0.0.1", 0), _Handler)
        self._http.receiver = self
        threading.Thread(target=self._http.serve_forever, args=(0.05,), daemon=True).start()
        self._grpc = grpc.server(ThreadPoolExecutor(4))
        trace_grpc.add_TraceServiceServicer_to_server(_Traces(self), self._grpc)
        metrics_grpc.add_MetricsServiceServicer_to_server(_Metrics(self), self._grpc)
        self.grpc_port: int = self._grpc.add_insecure_port("127.0.0.1:0")
        self._grpc.start()

    @property
    def http_port(self) -> int:
        return int(self._http.server_address[1])

    def address(self, protocol: str) -> str:
        return f"127.0.0.1:{self.grpc_port if protocol == 'grpc' else self.http_port}"

    def take(self, request: Any, headers: dict[str, str]) -> bool:
        """Whether to say that all is well."""
        self.asked.set()
        if self.answer == "never":
            self.release.wait()
        if self.answer != "well":
            return False
        self.headers.append(headers)
        self._requests.append(request)
        return True

    def spans(self) -> list[Any]:
        return [
            span
            for request in self._requests
            if isinstance(request, trace_pb2.ExportTraceServiceRequest)
            for resource in request.resource_spans
            for scope in resource.scope_spans
            for span in scope.spans
        ]

    def resources(self) -> list[dict[str, Any]]:
        return [
            attributes(each.resource.attributes)
            for request in self._requests
            for each in (
                request.resource_spans if hasattr(request, "resource_spans") else request.resource_metrics
            )
        ]

    def metrics(self) -> dict[str, Any]:
        """The last that was sent of each metric, by name."""
        return {
            metric.name: metric
            for request in self._requests
            if isinstance(request, metrics_pb2.ExportMetricsServiceRequest)
            for resource in request.resource_metrics
            for scope in resource.scope_metrics
            for metric in scope.metrics
        }

    def close(self) -> None:
        self.release.set()
        self._http.shutdown()
        self._http.server_close()
        self._grpc.stop(0).wait()


def attributes(pairs: Any) -> dict[str, Any]:
    """Attributes of the protocol as a plain dictionary."""
    return {pair.key: getattr(pair.value, pair.value.WhichOneof("value")) for pair in pairs}


class _Http(ThreadingHTTPServer):
    daemon_threads = True
    block_on_close = False
    receiver: OtlpReceiver


class _Handler(BaseHTTPRequestHandler):
    server: _Http

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        if self.headers.get("Content-Encoding") == "gzip":
            body = gzip.decompress(body)
        kinds = {
            "/v1/traces": trace_pb2.ExportTraceServiceRequest,
            "/v1/metrics": metrics_pb2.ExportMetricsServiceRequest,
        }
        request = kinds[self.path].FromString(body)
        headers = {name.lower(): value for name, value in self.headers.items()}
        well = self.server.receiver.take(request, headers)
        self.send_response(200 if well else 500)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, format: str, *args: Any) -> None:
        return None


class _Traces(trace_grpc.TraceServiceServicer):
    def __init__(self, receiver: OtlpReceiver) -> None:
        self._receiver = receiver

    def Export(self, request: Any, context: Any) -> Any:
        if not self._receiver.take(request, dict(context.invocation_metadata())):
            context.abort(grpc.StatusCode.UNAVAILABLE, "broken")
        return trace_pb2.ExportTraceServiceResponse()


class _Metrics(metrics_grpc.MetricsServiceServicer):
    def __init__(self, receiver: OtlpReceiver) -> None:
        self._receiver = receiver

    def Export(self, request: Any, context: Any) -> Any:
        if not self._receiver.take(request, dict(context.invocation_metadata())):
            context.abort(grpc.StatusCode.UNAVAILABLE, "broken")
        return metrics_pb2.ExportMetricsServiceResponse()


@contextmanager
def receiving(answer: Answer = "well") -> Iterator[OtlpReceiver]:
    receiver = OtlpReceiver(answer)
    try:
        yield receiver
    finally:
        receiver.close()
