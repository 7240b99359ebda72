"""A server as a child process: who it runs as, how it ends. Knows no server in particular."""

from __future__ import annotations

import atexit
import os
import pwd
import secrets
import shutil
import signal
import socket
import subprocess
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol, TypeVar


class Server(Protocol):
    def start(self) -> None: ...

    def stop(self) -> None: ...


AnyServer = TypeVar("AnyServer", bound=Server)


class ServiceUnavailable(Exception):
    """A server cannot be had; a test that needs it fails with this."""


@dataclass(frozen=True)
class Account:
    """The user that a server runs as when the tests run as root, which most servers refuse."""

    name: str
    uid: int
    gid: int


def server_account(*preferred: str) -> Account | None:
    """The first of the preferred users that exists, else ``nobody``; None when we are not root."""
    if os.geteuid() != 0:
        return None
    for name in (*preferred, "nobody"):
        try:
            entry = pwd.getpwnam(name)
        except KeyError:
            continue
        return Account(name, entry.pw_uid, entry.pw_gid)
    raise ServiceUnavailable("tests run as root, and there is no user to run a server as")


def as_account(
    command: Sequence[str], account: Account | None, *, dies_by: signal.Signals | None = None
) -> list[str]:
    """The command, run as that user; ``dies_by`` is the signal it gets when this process is killed."""
    setpriv = shutil.which("setpriv")
    prefix: list[str] = []
    if account is not None:
        prefix += [f"--reuid={account.uid}", f"--regid={account.gid}", "--clear-groups"]
    if dies_by is not None and setpriv:
        prefix += ["--pdeathsig", dies_by.name.removeprefix("SIG")]
    if not prefix:
        return list(command)
    if setpriv is None:
        raise ServiceUnavailable("tests run as root need  setpriv  (util-linux) to start a server")
    return [setpriv, *prefix, "--", *command]


def give_to(folder: Path, account: Account | None) -> None:
    """Make the account own the folder and all below it."""
    if account is None:
        return
    for path in (folder, *folder.rglob("*")):
        os.chown(path, account.uid, account.gid, follow_symlinks=False)


def may_run(program: Path, account: Account | None) -> bool:
    """Whether that user reaches the program: a checkout below a private home is closed to others."""
    # through a shell: setpriv itself still has root's right to execute anything
    command = as_account(["sh", "-c", '"$1" --version', "sh", str(program)], account)
    return subprocess.run(command, capture_output=True, check=False, cwd="/").returncode == 0


def free_port() -> int:
    """A free port outside the range for clients, so that a stopped server keeps its port."""
    for _ in range(1_000):
        port = 10_000 + secrets.randbelow(_first_of_clients() - 10_000)
        with socket.socket() as probe:
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
            return port
    raise ServiceUnavailable("no port is free for a server")


def _first_of_clients() -> int:
    try:
        return max(int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0]), 20_000)
    except FileNotFoundError:  # no Linux: the range that IANA names
        return 49_152


class ServerProcess:
    """One running server: its own process id is the only one that is ever signalled."""

    def __init__(
        self,
        command: Sequence[str],
        account: Account | None,
        log: Path,
        dies_by: signal.Signals = signal.SIGINT,
    ) -> None:
        self._log = log
        with log.open("ab") as output:
            self._process = subprocess.Popen(
                as_account(command, account, dies_by=dies_by),
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,  # Ctrl-C goes to the tests, which then stop it in order
                cwd="/",
            )

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def running(self) -> bool:
        return self._process.poll() is None

    def log_tail(self, lines: int = 20) -> str:
        return "\n".join(self._log.read_text(errors="replace").splitlines()[-lines:])

    def end(self, with_signal: signal.Signals, *, within: float = 30) -> None:
        """Signal it and wait; killed when it takes longer than that."""
        if self.running:
            self._process.send_signal(with_signal)
        try:
            self._process.wait(within)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()


@contextmanager
def in_own_folder(name: str, make: Callable[[Path], AnyServer]) -> Iterator[AnyServer]:
    """A started server in its own folder; both are removed after the block, even if it fails."""
    folder = Path(tempfile.mkdtemp(prefix=f"ematix-flow-{name}-")).resolve()
    server: AnyServer | None = None

    def end() -> None:
        if server is not None:
            server.stop()
        shutil.rmtree(folder, ignore_errors=True)

    atexit.register(end)
    try:
        server = make(folder)
        server.start()
        yield server
    finally:
        end()
        atexit.unregister(end)
