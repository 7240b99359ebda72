"""A private MariaDB, from the system's packages."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from tests.services.certificates import Certificates
from tests.services.mysql_server import MySQLServer, Programs, running
from tests.services.process import ServiceUnavailable, server_account


def find() -> Path | None:
    """The server's program: on the path, or where packages put what only root runs."""
    found = shutil.which("mariadbd", path=os.pathsep.join([os.environ.get("PATH", ""), "/usr/sbin"]))
    return Path(found) if found and shutil.which("mariadb-install-db") else None


def install() -> Path:
    found = find()
    if found:
        return found
    if os.geteuid() != 0 or shutil.which("apt-get") is None:
        raise ServiceUnavailable("MariaDB is not installed, and to install it needs root and apt-get")
    quiet = {**os.environ, "DEBIAN_FRONTEND": "noninteractive", "RUNLEVEL": "1"}
    wait = ["-o", "DPkg::Lock::Timeout=300"]
    try:
        subprocess.run(["apt-get", "update", "-q", *wait], check=True, env=quiet)
        command = ["apt-get", "install", "-y", "-q", "--no-install-recommends", *wait, "mariadb-server"]
        subprocess.run(command, check=True, env=quiet)
    except subprocess.CalledProcessError as problem:
        raise ServiceUnavailable(f"MariaDB could not be installed: {problem}") from problem
    found = find()
    if found is None:
        raise ServiceUnavailable("MariaDB was installed, but its program mariadbd is missing")
    return found


def _programs() -> Programs | None:
    server = find()
    if server is None:
        return None
    maker = shutil.which("mariadb-install-db") or "mariadb-install-db"
    quiet = ["--no-defaults", "--auth-root-authentication-method=normal", "--skip-test-db"]
    return Programs(
        "MariaDB", [maker, *quiet], [str(server), "--no-defaults", "--sync-frm=OFF"], server_account("mysql")
    )


@contextmanager
def running_server(
    settings: Mapping[str, str] | None = None, certificates: Callable[[Path], Certificates] | None = None
) -> Iterator[MySQLServer]:
    """A started server in its own folder; ``certificates`` make it speak TLS."""
    with running("MariaDB", _programs, settings, certificates) as server:
        yield server
