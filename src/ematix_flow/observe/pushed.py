"""Metrics of commands that end before anybody could ask them: to a Pushgateway, or into a file.

``prometheus+push://gateway:9091?job=flow`` and ``prometheus+file:///path/flow.prom``, which node_exporter's
textfile collector reads. Both add to what is there.
"""

from __future__ import annotations

import base64
import os
import socket
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.error import HTTPError
from urllib.parse import unquote, urlsplit
from urllib.request import Request, urlopen

from filelock import FileLock
from prometheus_client.exposition import basic_auth_handler, default_handler, pushadd_to_gateway
from prometheus_client.registry import Collector

from ematix_flow.errors import ConfigError
from ematix_flow.observe.endpoints import endpoint
from ematix_flow.observe.exposition import Families, Family, Fixed, Labels, families_in, merged, text_of
from ematix_flow.observe.metrics import SendingObserver

if TYPE_CHECKING:
    from ematix_flow.state.runlog import RunLog

SECONDS = 2.0  # for one question
LOCK_SECONDS = 4.0  # for the others that write the file
LARGEST_ANSWER = 64_000_000
_GATEWAY_PORT = 9091


class FileMetrics(SendingObserver):
    """Adds to the file under a lock, and replaces it whole: a reader never sees half of it."""

    def __init__(self, url: str, run_log: RunLog, also: Sequence[Collector]) -> None:
        parts = urlsplit(url)
        self._path = Path(unquote(parts.netloc + parts.path))
        if not self._path.name or parts.query:
            raise ConfigError(
                f"the metrics URL {url!r} names no file", next_step="write prometheus+file:///path/flow.prom"
            )
        if not self._path.parent.is_dir() or not os.access(self._path.parent, os.W_OK):
            raise ConfigError(
                f"metrics cannot be written to {self._path}: {self._path.parent} is no folder to write in",
                state="nothing was run",
                next_step="make the folder, and let this user write there",
            )
        super().__init__("prometheus+file://", run_log, also)

    def send(self, now: Families, added: Families) -> None:
        with FileLock(f"{self._path}.lock", timeout=LOCK_SECONDS):
            there = self._path.read_text(encoding="utf-8") if self._path.exists() else ""
            unfinished = self._path.with_name(f"{self._path.name}.{os.getpid()}")
            unfinished.write_bytes(text_of(merged(families_in(there), added)))
            unfinished.replace(self._path)


class PushedMetrics(SendingObserver):
    """A group of the gateway for each pipeline; what is of no pipeline is in the group of this machine."""

    def __init__(self, url: str, run_log: RunLog, also: Sequence[Collector]) -> None:
        self._to = endpoint(url, "metrics", _GATEWAY_PORT, ("job",))
        self._job = self._to.option("job", "ematix-flow")
        super().__init__(f"prometheus+push://{self._to.address}", run_log, also)

    def send(self, now: Families, added: Families) -> None:
        there = families_in(self._read())
        for group in sorted({_group(labels) for family in added.values() for _, labels in family.series}):
            ours = {
                name: Family(
                    family.kind,
                    family.meaning,
                    {key: value for key, value in family.series.items() if _group(key[1]) == group},
                )
                for name, family in added.items()
            }
            held = _held(there, self._job, group)
            total = merged({name: held[name] for name in ours if name in held}, ours)
            numbers: Any = Fixed(total)  # it collects, which is all that is asked of a registry
            pushadd_to_gateway(self._to.url, self._job, numbers, dict([group]), SECONDS, self._handler)

    def _read(self) -> str:
        """What the gateway holds."""
        request = Request(f"{self._to.url}/metrics")
        if self._to.user is not None:
            pair = f"{self._to.user}:{self._to.password or ''}".encode()
            request.add_header("Authorization", f"Basic {base64.b64encode(pair).decode()}")
        try:
            with urlopen(request, timeout=SECONDS) as answer:
                body = answer.read(LARGEST_ANSWER + 1)
        except HTTPError as error:
            error.close()
            raise
        if len(body) > LARGEST_ANSWER:
            raise ValueError(f"the gateway holds more than {LARGEST_ANSWER:,} bytes")
        return bytes(body).decode("utf-8")

    def _handler(
        self, url: str, method: str, timeout: float | None, headers: list[tuple[str, str]], data: bytes
    ) -> Callable[[], None]:
        if self._to.user is None:
            return default_handler(url, method, timeout, headers, data)
        return basic_auth_handler(url, method, timeout, headers, data, self._to.user, self._to.password or "")


def _group(labels: Labels) -> tuple[str, str]:
    """Which group of the gateway a series belongs to."""
    pipeline = dict(labels).get("pipeline")
    return ("instance", socket.gethostname()) if pipeline is None else ("pipeline", pipeline)


def _held(there: Families, job: str, group: tuple[str, str]) -> Families:
    """The series of a group, without the labels that the gateway adds to them."""
    wanted = {("job", job), group}
    return {
        name: Family(
            family.kind,
            family.meaning,
            {
                (sample, tuple(pair for pair in labels if pair[0] not in ("job", "instance"))): value
                for (sample, labels), value in family.series.items()
                if wanted <= set(labels) and _group(labels) == group
            },
        )
        for name, family in there.items()
    }
