"""Dagster's page over as many runs, as the rival of `flow web`.

Dagster itself stores one run; the other runs are copies of this row under other ids, jobs and times, made by
the database.
"""

from __future__ import annotations

import os
import socket
import subprocess
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from benchmarks.rivals import page_rival_python
from benchmarks.servers import Servers

START_SECONDS = 180.0
_DEFINITIONS = """\
import dagster as dg


def declare(number):
    @dg.op(name=f"op{{number}}")
    def load():
        return 1

    @dg.job(name=f"p{{number}}")
    def declared():
        load()

    return declared


defs = dg.Definitions(jobs=[declare(number) for number in range({pipelines})])
"""
_FIRST_RUN = """\
from dagster import DagsterInstance

import definitions

with DagsterInstance.get() as instance:
    job = definitions.defs.get_job_def("p0")
    print(job.execute_in_process(instance=instance).run_id)
"""
# n is 0 for the newest; every 31st run failed, and each job ran every five minutes
_COPIES = """\
INSERT INTO runs (run_id, snapshot_id, pipeline_name, status, run_body, create_timestamp, update_timestamp,
                  start_time, end_time)
{source}
SELECT copied_id, snapshot_id, job, outcome,
       replace(replace(replace(run_body, run_id, copied_id), '"p0"', '"' || job || '"'),
               'RunStatus.SUCCESS', 'RunStatus.' || outcome),
       {time}, {time}, {epoch}, {epoch} + 3
FROM (SELECT n, {id} AS copied_id, 'p' || (n % {pipelines}) AS job,
             CASE WHEN n % 31 = 0 THEN 'FAILURE' ELSE 'SUCCESS' END AS outcome FROM {numbers}) AS numbered,
     (SELECT * FROM runs LIMIT 1) AS first
ORDER BY n DESC
"""
_SQLITE = {
    "source": "WITH RECURSIVE c(n) AS (SELECT 0 UNION ALL SELECT n + 1 FROM c WHERE n + 1 < {runs})",
    "numbers": "c",
    "id": "printf('%08x-0000-4000-8000-%012x', (n * 2654435761) % 4294967296, n)",
    "time": "strftime('%Y-%m-%d %H:%M:%f000', 'now', '-' || (n / {pipelines} * 300) || ' seconds')",
    "epoch": "(strftime('%s', 'now') - (n / {pipelines}) * 300.0)",
}
_POSTGRES = {
    "source": "",
    "numbers": "generate_series(0::bigint, {runs} - 1) AS n",
    "id": "lpad(to_hex((n * 2654435761) % 4294967296), 8, '0') || '-0000-4000-8000-'"
    " || lpad(to_hex(n), 12, '0')",
    "time": "(now() - (n / {pipelines} * 300) * interval '1 second')",
    "epoch": "(extract(epoch FROM now()) - (n / {pipelines}) * 300.0)",
}
NEWEST_RUN = "a[href^='/runs/00000000-0000-4000']"  # the link to it in the list


@contextmanager
def served_by_dagster(store: str, folder: Path, servers: Servers, pipelines: int, runs: int) -> Iterator[str]:
    """The address of Dagster's page, once it has read its jobs."""
    python, home = page_rival_python(), folder / "home"
    home.mkdir(parents=True)
    (folder / "definitions.py").write_text(_DEFINITIONS.format(pipelines=pipelines), encoding="utf-8")
    (folder / "first_run.py").write_text(_FIRST_RUN, encoding="utf-8")
    location = servers.create("postgres", "dagster").location if store == "postgres" else ""
    (home / "dagster.yaml").write_text(_settings(location), encoding="utf-8")
    env = {**os.environ, "DAGSTER_HOME": str(home), "PYTHONWARNINGS": "ignore"}
    subprocess.run([python, "first_run.py"], cwd=folder, env=env, check=True, capture_output=True)
    _copy_the_run(location or f"sqlite:///{home / 'history' / 'runs.db'}", pipelines, runs)
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    command = [str(python.with_name("dagster-webserver")), "-h", "127.0.0.1", "-p", str(port)]
    with (folder / "dagster.log").open("wb") as log:
        process = subprocess.Popen(
            [*command, "-f", "definitions.py"], cwd=folder, env=env, stdout=log, stderr=subprocess.STDOUT
        )
    try:
        _wait_until_served(process, f"http://127.0.0.1:{port}/server_info", folder / "dagster.log")
        yield f"http://127.0.0.1:{port}"
    finally:
        process.terminate()
        try:
            process.wait(60)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _settings(location: str) -> str:
    quiet = "telemetry:\n  enabled: false\n"
    return f'{quiet}storage:\n  postgres:\n    postgres_url: "{location}"\n' if location else quiet


def _copy_the_run(url: str, pipelines: int, runs: int) -> None:
    import sqlalchemy as sa

    words = _POSTGRES if url.startswith("postgres") else _SQLITE
    known = {name: text.format(runs=runs, pipelines=pipelines) for name, text in words.items()}
    engine = sa.create_engine(url.replace("postgresql://", "postgresql+psycopg://", 1))
    statement = _COPIES.format(**known, pipelines=pipelines)
    with engine.begin() as connection:
        connection.exec_driver_sql(statement.replace("%", "%%") if words is _POSTGRES else statement)
    with engine.connect() as connection:
        connection.execution_options(isolation_level="AUTOCOMMIT").exec_driver_sql("ANALYZE")
    engine.dispose()


def _wait_until_served(process: subprocess.Popen[bytes], address: str, log: Path) -> None:
    deadline = time.monotonic() + START_SECONDS
    while process.poll() is None and time.monotonic() < deadline:
        try:
            with urllib.request.urlopen(address, timeout=5):
                return
        except OSError:
            time.sleep(0.2)
    raise RuntimeError(f"Dagster's page did not start:\n{log.read_text(errors='replace')[-2000:]}")
