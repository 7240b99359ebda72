"""Queries of a long history: commands on 1,000 pipelines with a million recorded runs.

The time of each command is measured in its own process, as a user waits for it. The database generates the
history: the rows of runs with two stages.
"""

from __future__ import annotations

import datetime as dt
import json
import shutil
import sys
from collections.abc import Callable, Iterable
from pathlib import Path

from benchmarks.machine import commit, machine_facts, versions
from benchmarks.process import compile_libraries, environment, last_words, measured, within
from benchmarks.results import Result, Run
from benchmarks.rounds import new_folder, order
from benchmarks.servers import Servers

PIPELINES, RUNS = 1_000, 1_000_000
STORES = ("sqlite", "postgres")
COMMANDS = {
    "list": ("list", "--module", "thousand.py"),
    "status": ("status", "--module", "thousand.py"),
    "runs": ("runs", "list"),
    "runs-failed": ("runs", "list", "--status", "failed"),
    "runs-pipeline": ("runs", "list", "--pipeline", "p7"),
    "show": ("runs", "show", "00000000"),
}
MODULE = """\
from ematix_flow import Annotated, BigInt, ematix, pk

@ematix.table(schema="s")
class T:
    n: Annotated[BigInt, pk()]

for number in range({pipelines}):
    @ematix.pipeline(target=T, target_connection="w", name=f"p{{number}}", schedule="*/5 * * * *",
                     depends_on=[f"p{{number - 1}}"] if number % 10 else [])
    def declared(conn):
        return "SELECT 1 AS n"
"""
_STAGES = [
    {"target": "w:s.t", "stage": stage, "at": at, "seconds": 1.25, "ended": True}
    for at, stage in enumerate(("prepare", "copy", "apply"))
]
_METRICS = json.dumps(
    {
        "pipeline": "p",
        "status": "succeeded",
        "targets": [{"target": "w:s.t", "mode": "append", "path": "copy", "rows_inserted": 1_000}],
        "stages": _STAGES,
    }
)
# n is 0 for the newest; every 31st run failed, and each pipeline ran every five minutes
_RUN = {
    "run_id": "{id}",
    "pipeline": "'p' || (n % {pipelines})",
    "target": "'w:s.t'",
    "mode": "'append'",
    "path": "'copy'",
    '"trigger"': "'schedule'",
    "slot": "{moment}",
    "attempt": "1",
    "batch": "'slot:x'",
    "status": "CASE WHEN n % 31 = 0 THEN 'failed' ELSE 'succeeded' END",
    "started_at": "{moment}",
    "finished_at": "{moment}",
    "host": "'host'",
    "pid": "1",
    "rows_read": "1000",
    "rows_inserted": "1000",
    "error_type": "CASE WHEN n % 31 = 0 THEN 'LoadError' END",
    "error_message": "CASE WHEN n % 31 = 0 THEN 'a value is too long' END",
    "engine": "'local[2], Spark'",
    "code_version": "'1.0'",
    "metrics": "'{metrics}'",
}
_SLOT = {
    "pipeline": "'p' || (n % {pipelines})",
    "fires_at": "{moment}",
    "not_before": "{moment}",
    "status": "'succeeded'",
    "begun": "true",
}
_SQLITE = {
    "id": "printf('%08x-%d', (n * 2654435761) % 4294967296, n)",
    "moment": "strftime('%Y-%m-%d %H:%M:%f000', 'now', '-' || (n / {pipelines} * 300) || ' seconds')",
    "source": "WITH RECURSIVE c(n) AS (SELECT 0 UNION ALL SELECT n + 1 FROM c WHERE n + 1 < {runs}) ",
    "from": "c",
    "schema": "",
}
_POSTGRES = {
    "id": "lpad(to_hex((n * 2654435761) % 4294967296), 8, '0') || '-' || n",
    "moment": "now() - (n / {pipelines} * 300) * interval '1 second'",
    "source": "",
    "from": "generate_series(0::bigint, {runs} - 1) AS n",
    "schema": "ematix_flow.",
}


def run_log_benchmark(
    stores: Iterable[str], runs: int, repeat: int, limit: float, seed: int, say: Callable[[str], None]
) -> list[Result]:
    compile_libraries(Path(sys.executable))
    return [_of_store(store, runs, repeat, limit, seed, say) for store in stores]


def _of_store(
    store: str, runs: int, repeat: int, limit: float, seed: int, say: Callable[[str], None]
) -> Result:
    folder, facts = new_folder(f"run-log-{store}"), machine_facts()
    measurements: list[Run] = []
    try:
        with Servers() as servers:
            (folder / "thousand.py").write_text(MODULE.format(pipelines=PIPELINES), encoding="utf-8")
            url = fill_run_log(store, folder, servers, runs)
            say(f"  {store}: {runs:,} runs are recorded")
            for number, name in order(list(COMMANDS), repeat, seed):
                run = _run(name, number, folder, url, limit)
                measurements.append(run)
                say(f"  round {number}, {name}: {run.problem or f'{run.total_seconds:.2f} s'}")
            about = {**versions(), **servers.versions()}
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    return Result(
        benchmark="run-log",
        case=f"run-log-{store}",
        title=f"Commands about {PIPELINES:,} pipelines, run log in {store.capitalize()}",
        date=dt.datetime.now(dt.timezone.utc).isoformat(timespec="seconds"),
        rows=runs,
        limit_seconds=limit,
        machine=facts,
        versions=about,
        commit=commit(),
        runs=tuple(measurements),
    )


def _run(name: str, number: int, folder: Path, url: str, limit: float) -> Run:
    env = {**environment(folder / "state"), "EMATIX_FLOW_RUN_LOG_URL": url}
    program = "from ematix_flow.cli.main import main; raise SystemExit(main())"
    command = [sys.executable, "-c", program, *COMMANDS[name]]
    ended = measured(command, folder, env, within(limit), folder / "output.log")
    problem = None
    if ended.code is None:
        problem = f"did not end within {limit:g} s"
    elif ended.code != 0:
        problem = f"ended with code {ended.code}: {last_words(ended.said)}"
    peak = ended.peak_bytes()
    return Run(name, number, 0.0, ended.seconds, ended.seconds, peak_bytes=peak, problem=problem)


def fill_run_log(store: str, folder: Path, servers: Servers, runs: int) -> str:
    """The URL of a log with so many runs, and as many slots."""
    import sqlalchemy as sa

    from ematix_flow.backends.state_stores.run_logs import open_run_log, open_slots, sql_tables
    from ematix_flow.state.slots.tables import slots

    url = f"sqlite://{folder}/run_log.db"
    if store == "postgres":
        url = servers.create("postgres", "run_log").location
    open_run_log(url, env={}, reading=True).close()
    open_slots(url, env={}).close()
    words = {key: text.format(runs=runs, pipelines=PIPELINES) for key, text in _words(store).items()}
    known = {**words, "pipelines": PIPELINES, "metrics": _METRICS}
    counts = {column.name: "0" for column in slots.c if isinstance(column.type, sa.BigInteger)}
    tables = sql_tables(url)
    patient = tables.maker or tables.engine  # the other limits how long it waits
    with patient.connect().execution_options(writes=True) as connection, connection.begin():
        for table, values in {"run_log": _RUN, "flow_slots": {**counts, **_SLOT}}.items():
            statement = (
                f"INSERT INTO {words['schema']}{table} ({', '.join(values)}) {words['source']}"
                f"SELECT {', '.join(values.values()).format(**known)} FROM {words['from']}"
            )
            connection.exec_driver_sql(statement.replace("%", "%%") if store == "postgres" else statement)
    if store == "postgres":
        with patient.connect() as connection:
            connection.execution_options(isolation_level="AUTOCOMMIT").execute(sa.text("ANALYZE"))
    return url


def _words(store: str) -> dict[str, str]:
    return _SQLITE if store == "sqlite" else _POSTGRES
