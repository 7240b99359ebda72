"""The wheels as a user gets them: built, installed into an empty environment, and used from there."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
import urllib.request
import zipfile
from collections.abc import Iterator
from pathlib import Path

import duckdb
import pytest

pytestmark = [pytest.mark.slow, pytest.mark.spark]

REPOSITORY = Path(__file__).resolve().parents[2]
SOURCES = REPOSITORY / "src"
# Before a test has its own home: what `make` installed is in this cache, so that nothing is fetched again
UV_CACHE = os.environ.get("UV_CACHE_DIR") or str(Path.home() / ".cache" / "uv")
_LEFT_OUT = ("PYTHONPATH", "VIRTUAL_ENV", "UV_BUILD_CONSTRAINT")  # the last is a path in the checkout


def run(folder: Path, *command: str | Path) -> str:
    """Run a command that sees neither this checkout nor the environment of the tests."""
    done = _completed(folder, *command)
    assert done.returncode == 0, f"{command}\n{done.stdout}\n{done.stderr}"
    return done.stdout


def _completed(folder: Path, *command: str | Path) -> subprocess.CompletedProcess[str]:
    env = {name: value for name, value in os.environ.items() if name not in _LEFT_OUT}
    return subprocess.run(
        [str(word) for word in command],
        cwd=folder,
        env={**env, "UV_CACHE_DIR": UV_CACHE, "NO_COLOR": "1"},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
    )


def build_wheel(folder: Path) -> Path:
    """Built from a copy: a build leaves no file in the checkout."""
    for name in ("pyproject.toml", "README.md", "LICENSE", "CHANGELOG.md"):
        shutil.copy(REPOSITORY / name, folder)
    shutil.copytree(SOURCES, folder / "src", ignore=shutil.ignore_patterns("__pycache__"))
    run(folder, sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", folder / "dist")
    (wheel,) = (folder / "dist").glob("*.whl")
    return wheel


def build_probe_wheel(folder: Path) -> Path:
    """The wheel of `ematix_probe` alone, from its source distribution, as a package index does it."""
    copy = folder / "repository"
    shutil.copytree(
        REPOSITORY / "probe", copy / "probe", ignore=shutil.ignore_patterns("__pycache__", "dist")
    )
    shutil.copytree(
        SOURCES / "ematix_probe", copy / "src" / "ematix_probe", ignore=shutil.ignore_patterns("__pycache__")
    )
    shutil.copy(REPOSITORY / "LICENSE", copy)
    build = [sys.executable, "-m", "hatchling", "build", "-d", folder / "dist"]
    run(copy / "probe", *build, "-t", "sdist")
    (packed,) = (folder / "dist").glob("*.tar.gz")
    shutil.unpack_archive(packed, folder / "unpacked", filter="data")
    (unpacked,) = (folder / "unpacked").iterdir()
    run(unpacked, *build, "-t", "wheel")
    (wheel,) = (folder / "dist").glob("*.whl")
    return wheel


def uv_program() -> str:
    return os.environ.get("UV") or shutil.which("uv") or str(REPOSITORY / ".uv" / "bin" / "uv")


def install(folder: Path, wheel: Path) -> Path:
    """The locked libraries from uv's cache, the wheel itself with pip; returns where the commands are."""
    uv = uv_program()
    run(folder, sys.executable, "-m", "venv", folder / "env")
    programs = folder / "env" / "bin"
    locked = ["--require-hashes", "-r", REPOSITORY / "lock" / "runtime.txt"]
    built = ["--build-constraint", REPOSITORY / "lock" / "build.txt"]
    libraries = [uv, "pip", "install", "--quiet", "--python", programs / "python", *locked, *built]
    if _completed(folder, *libraries, "--offline").returncode != 0:
        run(folder, *libraries)
    run(folder, programs / "python", "-m", "pip", "install", "--quiet", "--no-index", "--no-deps", wheel)
    run(folder, programs / "python", "-m", "pip", "check")
    return programs


@pytest.fixture(scope="module")
def folder() -> Iterator[Path]:
    """On the disk: uv links PySpark's half a gigabyte from its cache, which it cannot do into memory."""
    with tempfile.TemporaryDirectory(prefix="ematix-flow-installed-") as made:
        yield Path(made)


@pytest.fixture(scope="module")
def wheel(folder: Path) -> Path:
    return build_wheel(folder)


@pytest.fixture(scope="module")
def programs(folder: Path, wheel: Path) -> Path:
    return install(folder, wheel)


def test_the_wheel_holds_every_file_of_the_package(folder: Path, wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as packed:
        names = {name for name in packed.namelist() if not name.partition("/")[0].endswith(".dist-info")}
    sources = {path.relative_to(folder / "src").as_posix() for path in (folder / "src").rglob("*")}
    assert names == {name for name in sources if (folder / "src" / name).is_file()}


@pytest.mark.timeout(900)
def test_the_installed_package_makes_a_project_and_runs_it(folder: Path, programs: Path) -> None:
    where = run(folder, programs / "python", "-I", "-c", "import ematix_flow; print(ematix_flow.__file__)")
    assert where.startswith(str(folder / "env"))
    assert "shop/pipelines.py" in run(folder, programs / "flow", "init", "shop")
    loaded = run(folder / "shop", programs / "flow", "run", "--all")
    assert loaded.count("succeeded") == 2


CHECKS = """
from ematix_probe import probe, source

@probe.data(source=source.csv("customers.csv"))
def customers(t):
    t.column("id").not_null().unique()
    t.column("email").regex("@")
"""


def test_the_probes_are_installed_alone_and_check_a_file(folder: Path) -> None:
    alone = folder / "probes"
    alone.mkdir()
    wheel = build_probe_wheel(alone)
    with zipfile.ZipFile(wheel) as packed:
        names = set(packed.namelist())
    sources = {path.relative_to(SOURCES).as_posix() for path in (SOURCES / "ematix_probe").rglob("*")}
    expected = {name for name in sources if (SOURCES / name).is_file() and "__pycache__" not in name}
    assert {name for name in names if name.startswith("ematix_probe/")} == expected
    assert any(name.endswith(".dist-info/licenses/LICENSE") for name in names)

    uv, programs = uv_program(), alone / "env" / "bin"
    run(alone, uv, "venv", "--quiet", "--python", sys.executable, alone / "env")
    locked = ["--constraint", REPOSITORY / "lock" / "runtime.txt"]
    command = [uv, "pip", "install", "--quiet", "--python", programs / "python", *locked, wheel]
    if _completed(alone, *command, "--offline").returncode != 0:
        run(alone, *command)
    listed = run(alone, uv, "pip", "list", "--python", programs / "python", "--format", "freeze")
    installed = {line.partition("==")[0] for line in listed.splitlines()}
    assert "ematix-probe-spark" in installed
    assert not {"ematix-flow-spark", "pyspark", "pandas", "psycopg"} & installed

    (alone / "checks.py").write_text(CHECKS)
    (alone / "customers.csv").write_text("id,email\n1,ada@a.org\n2,bob\n")
    done = _completed(alone, programs / "ematix-probe", "run", "checks.py", "--history", "h.db")
    assert (done.returncode, "[FAIL] customers (customers.csv)" in done.stdout) == (1, True), done.stderr
    assert "email=bob" in done.stdout
    assert "customers" in run(alone, programs / "ematix-probe", "runs", "list", "--history", "h.db")
    missing = _completed(alone, programs / "ematix-probe", "runs", "list", "--history", "postgres://h/d")
    assert "pip install 'ematix-probe-spark[postgres]'" in " ".join(missing.stderr.split())


def statuses(table: str) -> dict[str, str]:
    """Pipeline and status of each line of a result table."""
    return {line.split()[0]: line.split()[1] for line in table.strip().splitlines()[1:]}


def demo_with_its_page(folder: Path, flow: Path) -> str:
    """What `flow demo --web` prints. It ends with a page that shows the runs, until it is stopped."""
    left_out = (*_LEFT_OUT, "DISPLAY", "BROWSER")
    env = {name: value for name, value in os.environ.items() if name not in left_out}
    with (
        open(folder / "story", "w+", encoding="utf-8") as story,
        subprocess.Popen(
            [flow, "demo", "--dir", "demo", "--web"],
            cwd=folder,
            env={**env, "NO_COLOR": "1"},
            stdin=subprocess.DEVNULL,
            stdout=story,
            stderr=subprocess.PIPE,
            text=True,
        ) as process,
    ):
        assert process.stderr is not None
        try:
            lines = list[str]()
            for line in process.stderr:
                lines.append(line)
                if line.startswith("sign in again with the token "):
                    break
            else:
                pytest.fail("".join(lines))
            (address,) = (each.removeprefix("open ") for each in lines if each.startswith("open "))
            asked = urllib.request.Request(f"{address.partition('/?code=')[0]}/api/v1/runs?status=failed")
            asked.add_header("Authorization", f"Bearer {lines[-1].split()[-1]}")
            with urllib.request.urlopen(asked, timeout=60) as answer:
                (failed,) = json.load(answer)["items"]
            assert (failed["pipeline"], failed["trigger"]) == ("payments", "demo")
        except BaseException:
            process.kill()  # else leaving the block would wait for it
            raise
        process.terminate()
        assert process.wait(60) == 0
        story.seek(0)
        return story.read()


@pytest.mark.timeout(900)
def test_the_demo_tells_its_story_and_what_it_offers_next_works(folder: Path, programs: Path) -> None:
    story = demo_with_its_page(folder, programs / "flow")
    demo, flow = folder / "demo", programs / "flow"
    tables = [part for part in story.split("\n\n") if part.startswith("pipeline ")]
    first, second = (statuses(table) for table in tables)
    assert set(first.values()) == {"succeeded"}
    assert len(first) == 8
    assert second == {
        **first,
        "returns": "skipped",
        "payments": "failed",
        "daily_cash": "not",  # run
    }
    assert "nothing new since the last run" in tables[1]
    assert "error: column 'currency'" in story
    assert "'EURO' is longer than the 3 characters" in story
    assert "where: pipelines.py:" in story
    assert story.count("plan  ") == 8 + 7  # what is not run is not planned
    assert "The demo went as planned, the failure included" in story

    with duckdb.connect(str(demo / "warehouse.duckdb"), read_only=True) as warehouse:
        for table, rows in {
            "shop.orders": 100_500,
            "shop.customers": 10_025,
            "shop.returns": 2_000,
            "shop.payments": 20_000,  # as before the failed load
            "reports.daily_revenue": 349,
            "reports.customer_value": 10_000,
            "reports.daily_cash": 696,
        }.items():
            assert warehouse.execute(f"SELECT count(*) FROM {table}").fetchone() == (rows,), table
        emails = "SELECT count(*) FILTER (email IS NULL), count(*) FILTER (email <> lower(trim(email)))"
        assert warehouse.execute(f"{emails} FROM shop.customers").fetchone() == (198, 0)
        once = "SELECT count(*) - count(DISTINCT order_id) FROM shop.orders"
        assert warehouse.execute(once).fetchone() == (0,)
    with duckdb.connect() as lake:
        orders = f"read_parquet('{demo}/lake/orders/**/*.parquet')"
        counts = lake.execute(f"SELECT count(*), count(DISTINCT order_id) FROM {orders}").fetchone()
    assert counts == (100_500, 100_500)

    for offered in ("status", "runs list", "plan orders"):
        assert f"/flow {offered} " in story
        run(demo, flow, *offered.split())
    listed = run(demo, flow, "runs", "list").splitlines()
    assert len(listed) == 1 + 8 + 8  # what is not run is recorded too
    assert " shop_data.py fix " in story
    run(demo, programs / "python", "shop_data.py", "fix")
    assert "/flow run payments daily_cash " in story
    fixed = run(demo, flow, "run", "payments", "daily_cash")
    assert statuses(fixed) == {"payments": "succeeded", "daily_cash": "succeeded"}
    with duckdb.connect(str(demo / "warehouse.duckdb"), read_only=True) as warehouse:
        assert warehouse.execute("SELECT count(*) FROM shop.payments").fetchone() == (20_300,)
