"""The published product of the same name, in a separate environment, with its TOML and its defaults."""

from __future__ import annotations

import os
import threading
import time
from pathlib import Path
from typing import Any

from benchmarks.contestants import Load
from benchmarks.endpoint import Endpoint
from benchmarks.job import Job


def prepare(job: Job) -> Load:
    from ematix_flow import run_pipeline

    def load(target: Endpoint) -> dict[str, Any]:
        threading.Thread(target=_end, args=(job,), daemon=True).start()
        job.mark("first batch", began=time.monotonic())
        run_pipeline(config_str=declared(job, target))
        raise RuntimeError("the stream has ended")

    return load


def declared(job: Job, target: Endpoint) -> str:
    """TOML writes these texts as JSON does."""
    source = {
        "kafka": f'bootstrap_servers = "{job.source.location}"\ngroup_id = "{job.options["topic"]}"\n'
        'payload_format = "json"\nauto_offset_reset = "earliest"',
        "rabbitmq": f'amqp_url = "{job.source.location}"',
    }[job.source.kind]
    table = '[target.table]\nschema = "public"\nname = "events"'
    into = {
        "postgres": f'kind = "postgres"\nurl = "{target.location}"\n{table}',
        "delta": f'kind = "delta_local"\npath = "{target.location}"\n{table.replace("public", "")}',
        "kafka": f'kind = "kafka"\nbootstrap_servers = "{target.location}"\n'
        f'topic = "{job.options["out"]}"\npayload_format = "json"',
    }[target.kind]
    return (
        f'pipeline_name = "events"\nsource_query = "{job.options["topic"]}"\n'
        f'[source]\nkind = "{job.source.kind}"\n{source}\n[target]\n{into}\n'
    )


def _end(job: Job) -> None:
    """It has no function that stops it."""
    while not Path(job.options["stop"]).exists():
        time.sleep(0.1)
    job.mark("loaded")
    os._exit(0)
