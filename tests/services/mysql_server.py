"""A private server that speaks MySQL's protocol: what MariaDB's and MySQL's have in common."""

from __future__ import annotations

import re
import secrets
import signal
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote

from tests.services.certificates import Certificates
from tests.services.process import (
    Account,
    ServerProcess,
    ServiceUnavailable,
    as_account,
    free_port,
    give_to,
    in_own_folder,
)

SUPERUSER = "tester"


@dataclass(frozen=True)
class Programs:
    """How one product is started: ``make_data`` prepares the folder given after it, ``serve`` runs it."""

    product: str
    make_data: Sequence[str]
    serve: Sequence[str]
    account: Account | None


class MySQLServer:
    """One server below ``folder``. Its port and password stay the same over restarts."""

    def __init__(
        self,
        programs: Programs,
        folder: Path,
        settings: Mapping[str, str] | None = None,
        certificates: Certificates | None = None,
    ) -> None:
        self.folder = folder
        self.port = 0
        self.password = secrets.token_hex(8)
        self.certificates = certificates
        self._programs = programs
        self._process: ServerProcess | None = None
        self._settings = {
            "bind-address": "127.0.0.1",
            "skip-name-resolve": "ON",
            "local-infile": "ON",
            "innodb-buffer-pool-size": "256M",
            "innodb-flush-log-at-trx-commit": "2",  # what is committed outlives the process, not the power
            "innodb-flush-method": "nosync",
            "performance-schema": "OFF",
            **(settings or {}),
        }
        if certificates is not None:
            self._settings |= {
                "ssl-ca": str(certificates.authority),
                "ssl-cert": str(certificates.certificate),
                "ssl-key": str(certificates.key),
            }
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
            raise ServiceUnavailable(f"{self._programs.product} was not started")
        return self._process.pid

    def url(self, database: str = "", *, user: str = SUPERUSER, password: str | None = None) -> str:
        secret = self.password if password is None else password
        login = f"{quote(user, safe='')}:{quote(secret, safe='')}"
        return f"mysql://{login}@127.0.0.1:{self.port}/{quote(database, safe='')}"

    def start(self) -> None:
        """Start it unless it runs; back only when this very server answers."""
        if self.running:
            return
        for _ in range(1 if self.port else 5):  # another process may take a free port before us
            port = self.port or free_port()
            options = [f"--{name}={value}" for name, value in self._settings.items()]
            files = {"datadir": self.data, "socket": self.folder / "s.sock", "pid-file": self.folder / "pid"}
            files |= {"init-file": self.folder / "accounts.sql", "tmpdir": self.folder / "tmp"}
            options += [f"--{name}={value}" for name, value in files.items()]
            process = ServerProcess(
                [*self._programs.serve, *options, f"--port={port}"],
                self._programs.account,
                self.folder / "server.log",
                signal.SIGTERM,
            )
            if self._answers(process, port):
                self._process, self.port = process, port
                return
            process.end(signal.SIGKILL)
        raise ServiceUnavailable(f"{self._programs.product} did not start:\n{process.log_tail()}")

    def stop(self, *, crash: bool = False) -> None:
        """Stop it: sessions are ended and work is rolled back; with ``crash`` it is killed."""
        if self._process is not None:
            self._process.end(signal.SIGKILL if crash else signal.SIGTERM)
            self._process = None

    def restart(self, *, crash: bool = False) -> None:
        self.stop(crash=crash)
        self.start()

    def execute(self, statement: str, database: str = "") -> list[tuple[Any, ...]]:
        """Run one trusted statement outside a transaction and return its rows."""
        with closing(self._connect(self.port, database)) as connection, connection.cursor() as cursor:
            cursor.execute(statement)
            return list(cursor.fetchall())

    def create_database(self, hint: str = "") -> str:
        """A new empty database; its name starts with what is usable of the hint."""
        readable = re.sub(r"[^a-z0-9]+", "_", hint.lower())[:40].strip("_")
        name = f"t_{readable}_{secrets.token_hex(4)}"
        self.execute(f"CREATE DATABASE `{name}`")
        return name

    @contextmanager
    def own_database(self, hint: str) -> Iterator[str]:
        """A new empty database by its URL. A schema is a database here: those made within go with it."""
        before = set(self.databases())
        yield self.url(self.create_database(hint))
        for made in sorted(set(self.databases()) - before):
            self.drop_database(made)

    def databases(self) -> list[str]:
        self.start()  # a test may have left it down
        return [name for (name,) in self.execute("SHOW DATABASES")]

    def drop_database(self, name: str) -> None:
        self.start()  # a test may have left it down
        self.execute(f"DROP DATABASE IF EXISTS `{name}`")

    def _connect(self, port: int, database: str = "") -> Any:
        import pymysql

        return pymysql.connect(
            host="127.0.0.1",
            port=port,
            user=SUPERUSER,
            password=self.password,
            database=database or None,
            charset="utf8mb4",
            autocommit=True,
            connect_timeout=10,
        )

    def _initialise(self) -> None:
        accounts = [
            f"CREATE USER IF NOT EXISTS '{SUPERUSER}'@'%' IDENTIFIED BY '{self.password}';",
            f"GRANT ALL PRIVILEGES ON *.* TO '{SUPERUSER}'@'%' WITH GRANT OPTION;",
        ]
        (self.folder / "tmp").mkdir()  # a server that starts clears the files of others from a shared one
        (self.folder / "accounts.sql").write_text("\n".join(accounts) + "\n")
        give_to(self.folder, self._programs.account)
        command = [*self._programs.make_data, f"--datadir={self.data}"]
        done = subprocess.run(
            as_account(command, self._programs.account), capture_output=True, text=True, check=False, cwd="/"
        )
        if done.returncode != 0:
            raise ServiceUnavailable(
                f"{self._programs.product} could not create its data folder:\n{done.stdout}\n{done.stderr}"
            )

    def _answers(self, process: ServerProcess, port: int) -> bool:
        """Whether our server is ready on that port; False when it ended or another one is there."""
        import pymysql

        deadline = time.monotonic() + 90
        while time.monotonic() < deadline and process.running:
            try:
                with closing(self._connect(port)) as connection, connection.cursor() as cursor:
                    cursor.execute("SELECT @@datadir")
                    row = cursor.fetchone()
            except (pymysql.MySQLError, OSError):
                time.sleep(0.05)
                continue
            return row is not None and Path(row[0]) == self.data
        return False


@contextmanager
def running(
    product: str,
    programs: Callable[[], Programs | None],
    settings: Mapping[str, str] | None,
    certificates: Callable[[Path], Certificates] | None,
) -> Iterator[MySQLServer]:
    """A started server in its own folder; both are removed after the block, even if it fails."""
    found = programs()
    if found is None:
        raise ServiceUnavailable(f"{product} is not installed: run  python -m tests.services install")

    def make(folder: Path) -> MySQLServer:
        made = certificates(folder / "certificates") if certificates is not None else None
        return MySQLServer(found, folder, settings, made)

    with in_own_folder(product.lower(), make) as server:
        yield server
