"""Metrics sinks for commands that end before they could be scraped: a Pushgateway, or a file.

``prometheus+push://gateway:9091?job=flow`` and ``prometheus+file:///path/flow.prom``, which node_exporter's
textfile collector reads. Both add to the numbers that are there.
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
from ematix_flow.observe.metric_families import (
    FixedCollector,
    MetricFamilies,
    MetricFamily,
    Series,
    families_added_since,
    format_families,
    merge_families,
    parse_families,
)
from ematix_flow.observe.metrics_observers import SendingObserver
from ematix_flow.observe.sink_urls import parse_sink_url

if TYPE_CHECKING:
    from ematix_flow.state.runlog.base import RunLog

REQUEST_SECONDS = 2.0  # for one request
LOCK_SECONDS = 4.0  # to wait for other writers of the file
LARGEST_ANSWER = 64_000_000
_GATEWAY_PORT = 9091
PushGroup = tuple[str, str]  # the label that all its series share


class TextfileMetrics(SendingObserver):
    """Adds to the file under a lock and replaces it as a whole: a reader never sees half of it."""

    def __init__(self, url: str, run_log: RunLog, also: Sequence[Collector]) -> None:
        parts = urlsplit(url)
        self._path = Path(unquote(parts.netloc + parts.path))
        if not self._path.name or parts.query:
            raise ConfigError(
                f"the metrics URL {url!r} names no file", next_step="write prometheus+file:///path/flow.prom"
            )
        if not self._path.parent.is_dir() or not os.access(self._path.parent, os.W_OK):
            raise ConfigError(
                f"metrics cannot be written to {self._path}: {self._path.parent} is not a writable folder",
                state="nothing was run",
                next_step="make the folder, and let this user write there",
            )
        super().__init__("prometheus+file://", run_log, also)

    def send(self, now: MetricFamilies, added: MetricFamilies) -> None:
        with FileLock(f"{self._path}.lock", timeout=LOCK_SECONDS):
            present = self._path.read_text(encoding="utf-8") if self._path.exists() else ""
            unfinished = self._path.with_name(f"{self._path.name}.{os.getpid()}")
            unfinished.write_bytes(format_families(merge_families(parse_families(present), added)))
            unfinished.replace(self._path)


class PushgatewayMetrics(SendingObserver):
    """Pushes one group per pipeline; numbers without a pipeline go to the group of this machine.

    The gateway can only be read and then written: if two processes write a group at the same time, one of
    them may lose what it added.
    """

    def __init__(self, url: str, run_log: RunLog, also: Sequence[Collector]) -> None:
        self._to = parse_sink_url(url, "metrics", _GATEWAY_PORT, ("job",))
        self._job = self._to.option("job", "ematix-flow")
        self._accepted: dict[PushGroup, MetricFamilies] = {}  # our numbers that the gateway last accepted
        self._unconfirmed: dict[
            PushGroup, tuple[MetricFamilies, MetricFamilies]
        ] = {}  # what was written, and from which numbers
        super().__init__(f"prometheus+push://{self._to.address}", run_log, also)

    def send(self, now: MetricFamilies, added: MetricFamilies) -> None:
        """Send group by group, so that a refused group does not count the others twice."""
        present = _split_by_group(_families_of_job(self._job, parse_families(self._read())))
        for group, ours in sorted(_split_by_group(now).items()):
            present_in_group = {name: each for name, each in present.get(group, {}).items() if name in ours}
            written, numbers = self._unconfirmed.pop(group, (None, {}))
            if written is not None and _series(present_in_group) == _series(written):
                self._accepted[group] = numbers  # only the answer was lost
            if ours == self._accepted.get(group):
                continue
            total = merge_families(
                present_in_group, families_added_since(ours, self._accepted.get(group, {}))
            )
            self._unconfirmed[group] = (total, ours)
            collector: Any = FixedCollector(total)  # it collects, which is all that a registry needs here
            pushadd_to_gateway(
                self._to.url, self._job, collector, dict([group]), REQUEST_SECONDS, self._handler
            )
            del self._unconfirmed[group]
            self._accepted[group] = ours

    def _read(self) -> str:
        """Return what the gateway holds."""
        request = Request(f"{self._to.url}/metrics")
        if self._to.user is not None:
            pair = f"{self._to.user}:{self._to.password or ''}".encode()
            request.add_header("Authorization", f"Basic {base64.b64encode(pair).decode()}")
        try:
            with urlopen(request, timeout=REQUEST_SECONDS) as answer:
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


def _split_by_group(families: MetricFamilies) -> dict[PushGroup, MetricFamilies]:
    """Return the series of each group, without the label that the gateway adds."""
    found: dict[PushGroup, MetricFamilies] = {}
    for name, family in families.items():
        for (sample, labels), value in family.series.items():
            given = dict(labels)
            host = given.pop("instance", "") or socket.gethostname()
            group = ("pipeline", given["pipeline"]) if "pipeline" in given else ("instance", host)
            family_of_group = found.setdefault(group, {}).setdefault(
                name, MetricFamily(family.kind, family.meaning)
            )
            family_of_group.series[sample, tuple(given.items())] = value
    return found


def _families_of_job(job: str, present: MetricFamilies) -> MetricFamilies:
    """Return what the gateway holds for one job, without the job label."""
    job_label = ("job", job)
    return {
        name: MetricFamily(
            family.kind,
            family.meaning,
            {
                (sample, tuple(pair for pair in labels if pair != job_label)): value
                for (sample, labels), value in family.series.items()
                if job_label in labels
            },
        )
        for name, family in present.items()
    }


def _series(families: MetricFamilies) -> dict[Series, float]:
    return {key: value for family in families.values() for key, value in family.series.items()}
