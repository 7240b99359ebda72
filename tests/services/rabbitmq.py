"""A private RabbitMQ, from the system's packages, with its own data folder, ports and name.

It keeps its data over a restart, and accepts TLS as well as plain AMQP when it is given certificates.
"""

from __future__ import annotations

import os
import re
import secrets
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.services.certificates import Certificates
from tests.services.process import (
    ServerProcess,
    ServiceUnavailable,
    free_port,
    give_to,
    in_own_folder,
    server_account,
)

USER = "flow"
_PORTS = ("amqp", "distribution", "epmd", "tls")


def find() -> Path | None:
    """The server's own script: the one on the path insists on a certain user."""
    found = sorted(Path("/usr/lib/rabbitmq/lib").glob("rabbitmq_server-*/sbin/rabbitmq-server"))
    return found[-1] if found and shutil.which("epmd") else None


def install() -> Path:
    found = find()
    if found:
        return found
    if os.geteuid() != 0 or shutil.which("apt-get") is None:
        raise ServiceUnavailable("RabbitMQ is not installed, and to install it needs root and apt-get")
    quiet = {**os.environ, "DEBIAN_FRONTEND": "noninteractive", "RUNLEVEL": "1"}
    wait = ["-o", "DPkg::Lock::Timeout=300"]
    try:
        subprocess.run(["apt-get", "update", "-q", *wait], check=True, env=quiet)
        command = ["apt-get", "install", "-y", "-q", "--no-install-recommends", *wait, "rabbitmq-server"]
        subprocess.run(command, check=True, env=quiet)
    except subprocess.CalledProcessError as problem:
        raise ServiceUnavailable(f"RabbitMQ could not be installed: {problem}") from problem
    found = find()
    if found is None:
        raise ServiceUnavailable("RabbitMQ was installed, but its program is missing")
    return found


class RabbitMQServer:
    """One broker below ``folder``. Its ports, password and data stay the same over restarts."""

    def __init__(self, program: Path, folder: Path, certificates: Certificates | None = None) -> None:
        self.folder, self.certificates = folder, certificates
        self.password = secrets.token_hex(12)
        self._program = program
        self._node = f"t{secrets.token_hex(4)}@localhost"
        self._account = server_account("rabbitmq")
        self._ports: dict[str, int] = {}
        self._process: ServerProcess | None = None
        self._names: ServerProcess | None = None  # epmd, which knows where the node listens
        for name in ("home", "data", "log"):
            (folder / name).mkdir()
        (folder / "plugins").write_text("[].\n")

    @property
    def running(self) -> bool:
        return self._process is not None and self._process.running

    @property
    def port(self) -> int:
        return self._ports["amqp"]

    def url(self, vhost: str = "%2F", *, user: str = USER, password: str | None = None) -> str:
        return f"amqp://{user}:{password or self.password}@127.0.0.1:{self.port}/{vhost}"

    def secure_url(self, host: str = "localhost") -> str:
        return f"amqps://{USER}:{self.password}@{host}:{self._ports['tls']}/%2F"

    def start(self) -> None:
        """Start it unless it runs; back only when this very node answers."""
        if self.running:
            return
        for _ in range(1 if self._ports else 5):  # another process may take a free port before us
            ports = self._ports or {name: free_port() for name in _PORTS}
            names, process = self._processes_on(ports)
            if self._answers(process, ports["amqp"]):
                self._names, self._process, self._ports = names, process, ports
                return
            process.end(signal.SIGKILL)
            names.end(signal.SIGKILL)
        raise ServiceUnavailable(f"RabbitMQ did not start:\n{process.log_tail(40)}")

    def stop(self, *, kill: bool = True) -> None:
        """Kill it, or ask it to end, which takes seconds."""
        if self._process is not None:
            self._process.end(signal.SIGKILL if kill else signal.SIGTERM, within=60)
            self._process = None
        if self._names is not None:
            self._names.end(signal.SIGKILL)
            self._names = None

    def restart(self, *, kill: bool = True) -> None:
        self.stop(kill=kill)
        self.start()

    # -------------------------------------------------------------- clients for tests

    @contextmanager
    def channel(self) -> Iterator[Any]:
        """A channel of pika, for tests to publish and read with."""
        import pika

        self.start()  # a test may have left it down
        connection = pika.BlockingConnection(pika.URLParameters(self.url()))
        try:
            yield connection.channel()
        finally:
            if connection.is_open:
                connection.close()

    def create_queue(self, hint: str = "", arguments: Mapping[str, Any] | None = None) -> str:
        """A new durable queue; its name starts with what is usable of the hint."""
        readable = re.sub(r"[^a-z0-9]+", "-", hint.lower())[:40].strip("-")
        name = f"t-{readable}-{secrets.token_hex(4)}"
        with self.channel() as channel:
            channel.queue_declare(name, durable=True, arguments=dict(arguments or {}))
        return name

    def delete_queue(self, name: str) -> None:
        with self.channel() as channel:
            channel.queue_delete(name)

    def count(self, queue: str) -> int:
        """How many messages are ready, without those that a consumer has and has not acknowledged."""
        with self.channel() as channel:
            return int(channel.queue_declare(queue, passive=True).method.message_count)

    def publish(self, queue: str, values: Sequence[bytes], *, ids: bool = False, **properties: Any) -> None:
        """Persistent messages, all confirmed when it returns; with ``ids`` each gets a message id."""
        import pika

        self.start()
        waiting, lowest = set(range(1, len(values) + 1)), 1

        def send(channel: Any) -> None:
            channel.confirm_delivery(confirmed)
            for number, value in enumerate(values):
                named = {"message_id": f"{properties.get('app_id', 'm')}-{number}"} if ids else {}
                shown = pika.BasicProperties(delivery_mode=2, **named, **properties)
                channel.basic_publish("", queue, value, shown)

        def confirmed(frame: Any) -> None:
            nonlocal lowest
            tag = frame.method.delivery_tag
            waiting.difference_update(range(lowest, tag + 1) if frame.method.multiple else (tag,))
            lowest = tag + 1 if frame.method.multiple else lowest
            if not waiting:
                connection.close()

        connection = pika.SelectConnection(
            pika.URLParameters(self.url()),
            on_open_callback=lambda opened: opened.channel(on_open_callback=send),
            on_close_callback=lambda closed, _: closed.ioloop.stop(),
        )
        connection.ioloop.start()
        connection.ioloop.close()
        assert not waiting, "the broker went away"

    # -------------------------------------------------------------- the processes

    def _processes_on(self, ports: Mapping[str, int]) -> tuple[ServerProcess, ServerProcess]:
        lines = [
            f"default_user = {USER}",
            f"default_pass = {self.password}",
            "loopback_users = none",
            "log.console = true",
            "log.file = false",
            "vm_memory_high_watermark.relative = 0.2",
            "disk_free_limit.absolute = 10MB",
        ]
        if self.certificates is not None:
            lines += [
                f"listeners.ssl.1 = 127.0.0.1:{ports['tls']}",
                f"ssl_options.cacertfile = {self.certificates.authority}",
                f"ssl_options.certfile = {self.certificates.certificate}",
                f"ssl_options.keyfile = {self.certificates.key}",
            ]
        (self.folder / "rabbitmq.conf").write_text("\n".join(lines) + "\n")
        give_to(self.folder, self._account)
        epmd = [shutil.which("epmd") or "epmd", "-port", str(ports["epmd"]), "-address", "127.0.0.1"]
        log = self.folder / "server.log"
        names = ServerProcess(epmd, self._account, log, signal.SIGKILL)
        command = ["env", *(f"{name}={value}" for name, value in self._environment(ports).items())]
        return names, ServerProcess([*command, str(self._program)], self._account, log, signal.SIGKILL)

    def _environment(self, ports: Mapping[str, int]) -> dict[str, str]:
        return {
            "HOME": str(self.folder / "home"),
            "RUNNING_UNDER_SYSTEMD": "true",  # the script becomes the server, and is no parent of it
            "RABBITMQ_NODENAME": self._node,
            "RABBITMQ_NODE_IP_ADDRESS": "127.0.0.1",
            "RABBITMQ_NODE_PORT": str(ports["amqp"]),
            "RABBITMQ_DIST_PORT": str(ports["distribution"]),
            "ERL_EPMD_PORT": str(ports["epmd"]),
            "ERL_EPMD_ADDRESS": "127.0.0.1",
            "RABBITMQ_MNESIA_BASE": str(self.folder / "data"),
            "RABBITMQ_LOG_BASE": str(self.folder / "log"),
            "RABBITMQ_ENABLED_PLUGINS_FILE": str(self.folder / "plugins"),
            "RABBITMQ_CONF_ENV_FILE": "/dev/null",
            "RABBITMQ_CONFIG_FILE": str(self.folder / "rabbitmq"),
            "RABBITMQ_PID_FILE": str(self.folder / "pid"),
            "RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS": "-kernel inet_dist_use_interface {127,0,0,1} +sbwt none",
        }

    def _answers(self, process: ServerProcess, port: int) -> bool:
        import pika
        from pika.exceptions import AMQPError

        login = pika.PlainCredentials(USER, self.password)
        address = pika.ConnectionParameters("127.0.0.1", port, credentials=login, socket_timeout=5)
        deadline = time.monotonic() + 120
        while process.running and time.monotonic() < deadline:
            try:
                connection = pika.BlockingConnection(address)
            except (AMQPError, OSError):
                time.sleep(0.2)
                continue
            # only our server has this password
            connection.close()
            return True
        return False


@contextmanager
def running_server(
    certificates: Callable[[Path], Certificates] | None = None,
) -> Iterator[RabbitMQServer]:
    """A started broker in its own folder; ``certificates`` make it speak TLS."""
    program = find()
    if program is None:
        raise ServiceUnavailable("RabbitMQ is not installed: run  python -m tests.services install rabbitmq")

    def make(folder: Path) -> RabbitMQServer:
        made = certificates(folder / "certificates") if certificates else None
        return RabbitMQServer(program, folder, made)

    with in_own_folder("rabbitmq", make) as server:
        yield server
