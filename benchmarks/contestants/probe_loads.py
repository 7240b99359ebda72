"""Contestants of the benchmark of load probes: users that send to one server, each as its documents show.

All check the status of every answer, wait for nothing between two requests, and leave out a first stretch.
"""

from __future__ import annotations

import json
import os
import subprocess
import time
from pathlib import Path
from typing import Any

from benchmarks.contestants import Load
from benchmarks.endpoint import Endpoint
from benchmarks.job import Job
from benchmarks.process_tree import cpu_seconds

WARMUP = 2.0
K6_SCRIPT = """
import http from "k6/http";
import { check } from "k6";
export const options = { summaryTrendStats: ["med", "p(99)"] };
export default function () {
  check(http.get(__ENV.TARGET), { "status is 200": (answer) => answer.status === 200 });
}
"""


def prepare(job: Job) -> Load:
    """ematix_probe, one process."""
    from ematix_probe import http, probe
    from ematix_probe.load import http_load

    assert http_load

    def load(target: Endpoint) -> dict[str, Any]:
        @probe.load(
            target=http("GET", target.location),
            users=int(job.options["users"]),
            duration=WARMUP + float(job.options["seconds"]),
            warmup=WARMUP,
        )
        def orders(t: Any) -> None:
            t.status_in([200])

        before = cpu_seconds(os.getpid())
        report = orders.run()
        figures = report.metadata["summary"]
        return {
            "requests": figures["attempts"],
            "all requests": figures["attempts"] + report.metadata["warmup_attempts"],
            "failed": figures["errors"],
            "seconds": report.metadata["effective_seconds"],
            "processor seconds": cpu_seconds(os.getpid()) - before,
            "latency": {"p50": figures.get("latency_ms.p50"), "p99": figures.get("latency_ms.p99")},
        }

    return load


def prepare_locust(job: Job) -> Load:
    """locust with its HttpUser, in one process."""
    from locust import HttpUser

    return _locust(job, HttpUser)


def prepare_locust_fast(job: Job) -> Load:
    """locust with its FastHttpUser, in one process."""
    from locust import FastHttpUser

    return _locust(job, FastHttpUser)


def _locust(job: Job, user: Any) -> Load:
    import gevent
    from locust import constant, task
    from locust.env import Environment

    def load(target: Endpoint) -> dict[str, Any]:
        class Shopper(user):  # type: ignore[misc]  # locust has no types
            host = target.location.rstrip("/")
            wait_time = constant(0)

            @task
            def order(self) -> None:
                self.client.get("/")

        environment = Environment(user_classes=[Shopper])
        runner = environment.create_local_runner()
        before = cpu_seconds(os.getpid())
        users = int(job.options["users"])
        runner.start(users, spawn_rate=users)
        gevent.sleep(WARMUP)
        total = environment.stats.total
        first, first_failed, started = total.num_requests, total.num_failures, time.monotonic()
        gevent.sleep(float(job.options["seconds"]))
        seconds = time.monotonic() - started
        requests, failed = total.num_requests - first, total.num_failures - first_failed
        runner.quit()
        return {
            "requests": requests,
            "all requests": total.num_requests,
            "failed": failed,
            "seconds": seconds,
            "processor seconds": cpu_seconds(os.getpid()) - before,
            "latency": {
                "p50": total.get_response_time_percentile(0.5),
                "p99": total.get_response_time_percentile(0.99),
            },
        }

    return load


def prepare_k6(job: Job) -> Load:
    """k6 on one core; it has no warm-up."""
    script, summary = Path("load.js").absolute(), Path("summary.json").absolute()
    script.write_text(K6_SCRIPT)

    def load(target: Endpoint) -> dict[str, Any]:
        seconds = float(job.options["seconds"])
        command = [job.options["k6"], "run", "--quiet", "--no-usage-report", "--vus", job.options["users"]]
        command += ["--duration", f"{seconds:g}s", "--summary-export", str(summary), str(script)]
        # GOMAXPROCS is that of one core: all contestants run on one
        environment = {**os.environ, "GOMAXPROCS": "1", "TARGET": target.location}
        subprocess.run(command, check=True, env=environment)
        times = os.times()
        found = json.loads(summary.read_text())["metrics"]
        requests, latency = found["http_reqs"], found["http_req_duration"]
        return {
            "requests": requests["count"],
            "all requests": requests["count"],
            "failed": found["checks"]["fails"],
            "seconds": requests["count"] / requests["rate"],
            "processor seconds": times.children_user + times.children_system,
            "latency": {"p50": latency["med"], "p99": latency["p(99)"]},
        }

    return load
