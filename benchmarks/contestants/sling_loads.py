"""Sling: the program from its wheel, called once for each load."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path
from typing import Any

from benchmarks.contestants import Load
from benchmarks.endpoint import Endpoint
from benchmarks.job import Job


def prepare(job: Job) -> Load:
    return _prepare(job, ["--mode", "full-refresh"])


def prepare_merge(job: Job) -> Load:
    """New and changed rows by their time of change, merged by key into the existing table."""
    keys = ",".join(job.dataset.key)
    return _prepare(job, ["--mode", "incremental", "--primary-key", keys, "--update-key", "updated_at"])


def _prepare(job: Job, mode: list[str]) -> Load:
    program = _program()
    folder = Path(job.marks).with_name("sling")
    folder.mkdir()

    def load(target: Endpoint) -> dict[str, Any]:
        env = {
            **os.environ,
            "SLING_DISABLE_TELEMETRY": "TRUE",
            "SLING_HOME_DIR": str(folder),
            "SLING_TEMP_DIR": str(folder),
            **(_duckdb(folder) if target.kind == "duckdb" else {}),
            **({} if job.source.kind == "csv" else {"SOURCE": _address(job.source)}),
            "TARGET": _address(target),
        }
        command = [program, "run", *_stream(job)]
        command += ["--tgt-conn", "TARGET", "--tgt-object", _name(target, job.table), *mode]
        done = subprocess.run(command, env=env, capture_output=True, text=True, check=False)
        if done.returncode != 0:
            raise RuntimeError(_complaint(done.stdout + done.stderr))
        return {}

    return load


def _program() -> str:
    import sling_linux_amd64

    return str(Path(sling_linux_amd64.__file__).parent / "bin" / "sling-linux-amd64")


def _duckdb(home: Path) -> dict[str, str]:
    """DuckDB's command line, and the extension with which it reads from Sling, both from wheels."""
    import duckdb_cli
    import duckdb_extension_httpfs

    found = next(Path(duckdb_extension_httpfs.__file__).parent.glob("extensions/*/httpfs.duckdb_extension"))
    installed = home / ".duckdb" / "extensions" / found.parent.name / "linux_amd64" / found.name
    installed.parent.mkdir(parents=True, exist_ok=True)
    if not installed.exists():
        installed.symlink_to(found)
    program = Path(duckdb_cli.__file__).parent / "duckdb"
    return {"DUCKDB_PATH": str(program), "DUCKDB_USE_INSTALLED_EXTENSIONS": "TRUE", "HOME": str(home)}


def _stream(job: Job) -> list[str]:
    if job.source.kind == "csv":
        return ["--src-stream", f"file://{Path(job.source.location) / job.table / job.table}.csv"]
    return ["--src-conn", "SOURCE", "--src-stream", _name(job.source, job.table)]


def _name(endpoint: Endpoint, table: str) -> str:
    """A table with its schema, which each system calls differently."""
    if endpoint.kind == "mysql":
        return f"{endpoint.login().database}.{table}"
    return f"{'main' if endpoint.kind == 'duckdb' else 'public'}.{table}"


def _address(endpoint: Endpoint) -> str:
    if endpoint.kind == "duckdb":
        return f"duckdb://{endpoint.location}"
    return endpoint.location + ("?sslmode=disable" if endpoint.kind == "postgres" else "")


def _complaint(said: str) -> str:
    lines = [line for line in said.splitlines() if line.strip()]
    told = [line for line in lines if "fatal" in line.lower() or "error" in line.lower()]
    return (told or lines or ["it printed nothing"])[-1]
