"""How long commands take, as multiples of the time that this machine needs to import typer."""

from __future__ import annotations

import os
import sys
from pathlib import Path

PROGRAM = "import sys; from ematix_flow.cli.main import main; sys.exit(main())"
THOUSAND = """
from ematix_flow import Annotated, BigInt, ematix, pk

@ematix.table(schema="s")
class T:
    n: Annotated[BigInt, pk()]

for number in range(1000):
    @ematix.pipeline(target=T, target_connection="w", name=f"p{number}", schedule="*/5 * * * *",
                     depends_on=[f"p{number - 1}"] if number else [])
    def declared(conn):
        return "SELECT 1 AS n"
"""


def cpu_seconds(*arguments: str) -> float:
    """User and system time of one Python process, which others on the machine disturb least."""
    child = os.posix_spawn(
        sys.executable,
        [sys.executable, *arguments],
        os.environ,
        file_actions=[(os.POSIX_SPAWN_OPEN, 1, os.devnull, os.O_WRONLY, 0)],
    )
    _, status, usage = os.wait4(child, 0)
    assert status == 0
    return usage.ru_utime + usage.ru_stime


def best(*arguments: str) -> float:
    return min(cpu_seconds(*arguments) for _ in range(4))


def test_help_takes_less_than_importing_typer_takes() -> None:
    """About 50 ms on a machine on which typer takes 100: far within the 200 ms that people may wait."""
    assert best("-c", PROGRAM, "--help") < best("-c", "import typer")


def test_listing_a_thousand_pipelines_takes_a_second_at_most(tmp_path: Path) -> None:
    (tmp_path / "thousand.py").write_text(THOUSAND)
    yardstick = best("-c", "import typer")  # a tenth of a second on a machine of today
    assert best("-c", PROGRAM, "list", "--module", "thousand") < 10 * yardstick
