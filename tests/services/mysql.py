"""A private MySQL: Debian's unstable packages unpacked aside, run through their own loader.

The tree is in the user's cache, for all clones of this repository; no root is needed to run it.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import subprocess
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from tests.services.certificates import Certificates
from tests.services.mysql_server import MySQLServer, Programs, running
from tests.services.process import ServiceUnavailable

# taken at import: a test has another home
CACHE = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "ematix-flow-tests"
TREE = CACHE / "mysql"
SUITE, PACKAGE = "sid", "mysql-server-core"
_KEPT = ("usr/sbin/mysqld", "usr/lib/mysql", "usr/share/mysql")


def find() -> Path | None:
    """The tree; it has its name only when it is whole."""
    return TREE if TREE.exists() else None


def install() -> Path:
    if find() is None:
        if os.geteuid() != 0 or shutil.which("apt-get") is None:
            raise ServiceUnavailable("MySQL is not installed, and to unpack it needs root and apt-get")
        CACHE.mkdir(parents=True, exist_ok=True)
        with (CACHE / "mysql.lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)  # another clone may be at it
            if find() is None:
                _unpack()
    return TREE


def _unpack() -> None:
    work, ready = CACHE / "mysql.debootstrap", CACHE / "mysql.partial"
    for leftover in (work, ready):
        _remove(leftover)
    try:
        if shutil.which("debootstrap") is None:
            quiet = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
            wait = ["-o", "DPkg::Lock::Timeout=300"]
            subprocess.run(["apt-get", "update", "-q", *wait], check=True, env=quiet)
            subprocess.run(["apt-get", "install", "-y", "-q", *wait, "debootstrap"], check=True, env=quiet)
        command = ["debootstrap", "--variant=minbase", f"--include={PACKAGE}", SUITE, str(work)]
        subprocess.run(command, check=True)
    except (OSError, subprocess.CalledProcessError) as problem:
        raise ServiceUnavailable(f"MySQL could not be unpacked: {problem}") from problem
    for kept in (*_KEPT, f"usr/lib/{_loader(work).parent.name}"):
        target = ready / kept
        target.parent.mkdir(parents=True, exist_ok=True)
        (work / kept).rename(target)
    ready.rename(TREE)
    _remove(work)


def _remove(folder: Path) -> None:
    """Never through a file system that an interrupted debootstrap left mounted in it."""
    for mounted in (folder / "proc", folder / "sys", folder / "dev" / "pts", folder / "dev"):
        if mounted.is_mount():
            subprocess.run(["umount", str(mounted)], check=True)
    if folder.exists():
        shutil.rmtree(folder)


def _loader(tree: Path) -> Path:
    found = sorted(tree.glob("usr/lib/*-linux-gnu*/ld-linux-*.so.*"))
    if not found:
        raise ServiceUnavailable(f"{tree} does not contain a program loader")
    return found[0]


def _programs() -> Programs | None:
    tree = find()
    if tree is None:
        return None
    loader = _loader(tree)
    libraries = f"{loader.parent}:{tree / 'usr/lib/mysql/private'}"
    mysqld = [str(loader), "--library-path", libraries, str(tree / "usr/sbin/mysqld"), "--no-defaults"]
    mysqld += [f"--basedir={tree / 'usr'}", f"--lc-messages-dir={tree / 'usr/share/mysql'}"]
    mysqld += [f"--plugin-dir={tree / 'usr/lib/mysql/plugin'}", "--secure-file-priv=NULL"]
    if os.geteuid() == 0:
        mysqld.append("--user=root")  # the cache of root is closed to any other account
    quiet = ["--mysqlx=OFF", "--skip-log-bin"]
    return Programs("MySQL", [*mysqld, "--initialize-insecure"], [*mysqld, *quiet], None)


@contextmanager
def running_server(
    settings: Mapping[str, str] | None = None, certificates: Callable[[Path], Certificates] | None = None
) -> Iterator[MySQLServer]:
    """A started server in its own folder; ``certificates`` replace those it makes for itself."""
    with running("MySQL", _programs, settings, certificates) as server:
        yield server
