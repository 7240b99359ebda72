"""Which Spark a run uses, and why: this machine, a cluster, or a Connect server.

`EngineSettings.resolve` reads the argument, then ``EMATIX_FLOW_ENGINE``, then the ``[engine]`` table.
It starts nothing and imports no Spark.
"""

from __future__ import annotations

import os
import re
import socket
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from ematix_flow.config.project_file import setting_location
from ematix_flow.engine.spark.machine_resources import cores
from ematix_flow.errors import CannotConnect, ConfigError, FlowError, did_you_mean
from ematix_flow.spec.location import NamedLocation, SourceLocation

Purpose = Literal["short", "long"]
HostLookup = Callable[[str, int], Sequence[str]]

_WORDS = ("auto", "local", "distributed", "yarn")
_SHAPES = ("local[N]", "local[N,TRIES]", "spark://host:port", "k8s://https://host:port", "sc://host:port")
_KEYS = ("mode", "peers", "shuffle_partitions", "memory", "conf", "purpose")
_LOCAL = re.compile(r"local\[(\*|[1-9]\d*)(,[1-9]\d*)?\]")  # number of tasks, then number of tries
_PEER = re.compile(
    r"(?P<scheme>spark|http|dns|k8s)://(?P<host>[^/:\s\[\]]+|\[[0-9a-fA-F:]+\]):(?P<port>\d{1,5})/?"
)
_MEMORY = re.compile(r"[1-9]\d*[kmgt]", re.IGNORECASE)


@dataclass(frozen=True)
class EngineSettings:
    """``mode`` is the requested engine, ``master`` the resolved Spark master, ``reason`` says why."""

    mode: str = "local"
    master: str = "local[*]"
    reason: str = "asked for"
    peers: tuple[str, ...] = ()
    shuffle_partitions: int | None = None
    """None: the number of cores."""
    memory: str | None = None
    """The driver's memory, as ``4g``. None: half of the machine's memory."""
    conf: Mapping[str, str] = field(default_factory=dict, hash=False)
    purpose: Purpose = "short"
    """A ``short`` command starts faster; a ``long`` one (a stream, the scheduler) compiles better code."""

    @classmethod
    def resolve(
        cls,
        *,
        engine: str | None = None,
        peers: Sequence[str] = (),
        env: Mapping[str, str] = os.environ,
        config: Mapping[str, Any] | None = None,
        purpose: Purpose | None = None,
        lookup: HostLookup | None = None,
    ) -> EngineSettings:
        """``config`` holds the project's settings; only its ``engine`` table (or word) is used."""
        try:
            return cls._resolve(engine, peers, env, config, purpose, lookup or _addresses)
        except FlowError as error:
            raise error.with_location(_setting_location(error, engine, peers, env)) from error.__cause__

    @classmethod
    def _resolve(
        cls,
        engine: str | None,
        peers: Sequence[str],
        env: Mapping[str, str],
        config: Mapping[str, Any] | None,
        purpose: Purpose | None,
        lookup: HostLookup,
    ) -> EngineSettings:
        table = _engine_table(config)
        if engine:
            mode, source = engine, "asked for"
        elif env.get("EMATIX_FLOW_ENGINE"):
            mode, source = env["EMATIX_FLOW_ENGINE"], "EMATIX_FLOW_ENGINE"
        elif table.get("mode"):
            mode, source = str(table["mode"]), "[engine] mode"
        else:
            mode, source = "auto", "the default"
        peers = tuple(peers) or tuple(table.get("peers", ()))
        master, reason = _master(mode, source, peers, lookup)
        return cls(
            mode=mode,
            master=master,
            reason=reason,
            peers=peers,
            shuffle_partitions=_parse_partitions(table.get("shuffle_partitions")),
            memory=_parse_memory(table.get("memory")),
            conf=_parse_conf(table.get("conf", {})),
            purpose=purpose or _parse_purpose(table.get("purpose", "short")),
        )

    @property
    def is_local(self) -> bool:
        return self.master.startswith("local")

    @property
    def is_connect(self) -> bool:
        return self.master.startswith("sc://")

    @property
    def cores(self) -> int:
        """How many tasks run at once on this machine; 0 if a cluster decides."""
        number = self.master[6:-1].partition(",")[0] if self.is_local else "0"
        return cores() if number == "*" else int(number)


def check_engine(engine: str | None, env: Mapping[str, str], config: Mapping[str, Any]) -> None:
    """Raise the errors of `EngineSettings.resolve`, except for host names without an address.

    Asks no server.
    """
    EngineSettings.resolve(engine=engine, env=env, config=config, lookup=lambda host, port: ["127.0.0.1"])


def _setting_location(
    error: FlowError, engine: str | None, peers: Sequence[str], env: Mapping[str, str]
) -> SourceLocation | None:
    """The location of the wrong setting: the option, the variable or the line of the file."""
    about_mode = "[engine]" not in error.what and "peer" not in error.what
    if about_mode and engine:
        return NamedLocation.of("engine= or --engine")
    if about_mode and env.get("EMATIX_FLOW_ENGINE"):
        return NamedLocation.of("the variable EMATIX_FLOW_ENGINE")
    if peers:
        return NamedLocation.of("peers=")
    named = re.search(r"(?:\[engine\] |setting ')(\w+)", error.what)
    key = named[1] if named else "peers" if "peer" in error.what else "mode"
    return setting_location("engine", key)


def _engine_table(config: Mapping[str, Any] | None) -> Mapping[str, Any]:
    table = (config or {}).get("engine", {})
    if isinstance(table, str):
        return {"mode": table}
    if not isinstance(table, Mapping):
        raise ConfigError(
            "[engine] is neither a table nor a mode", next_step='write  [engine]  mode = "local"'
        )
    for key in table:
        if key not in _KEYS:
            raise ConfigError(f"[engine] has no setting '{key}'.{did_you_mean(key, _KEYS)}")
    peers = table.get("peers", [])
    if isinstance(peers, str) or not all(isinstance(p, str) for p in peers):
        raise ConfigError('[engine] peers is a list of addresses, as ["spark://host:7077"]')
    return table


def _master(mode: str, source: str, peers: Sequence[str], lookup: HostLookup) -> tuple[str, str]:
    if mode == "auto":
        found = _expand_peers(peers, lookup)
        if found:
            return _standalone_master(found), f"peers came to {_count(found)}"
        if peers:
            return (
                _local_master(),
                f"none of the peers ({', '.join(peers)}) has an address now: this machine instead",
            )
        return _local_master(), f"no peers are named: this machine, {cores()} of its cores"
    if mode == "distributed":
        return _standalone_master(_require_peers(peers, lookup)), f"{source}: distributed"
    if mode == "local":
        return _local_master(), f"{source}: this machine, {cores()} of its cores"
    local = _LOCAL.fullmatch(mode)
    if local:
        number = str(cores()) if local[1] == "*" else local[1]
        return f"local[{number}{local[2] or ''}]", f"{source}: this machine, {number} of its cores"
    if mode == "yarn" or re.fullmatch(r"(spark|k8s|sc)://\S+", mode):
        return mode, source
    known = (*_WORDS, *_SHAPES)
    raise ConfigError(
        f"there is no engine '{mode}' ({source}).{did_you_mean(mode, known)}",
        next_step=f"use one of {', '.join(known)}",
    )


def _local_master() -> str:
    return f"local[{cores()}]"


def _standalone_master(addresses: Sequence[str]) -> str:
    return "spark://" + ",".join(addresses)


def _count(names: Sequence[str]) -> str:
    return f"{len(names)} address{'' if len(names) == 1 else 'es'}: {', '.join(names)}"


def _require_peers(peers: Sequence[str], lookup: HostLookup) -> list[str]:
    if not peers:
        raise ConfigError(
            "the engine is 'distributed', and no peers are named",
            next_step='name them: peers = ["spark://host:7077"], or use the engine "auto"',
        )
    found = _expand_peers(peers, lookup)
    if not found:
        raise CannotConnect(
            f"the engine is 'distributed', and none of the peers has an address: {', '.join(peers)}",
            next_step="check the names, or use the engine 'auto' to fall back to this machine",
        )
    return found


def _expand_peers(peers: Sequence[str], lookup: HostLookup) -> list[str]:
    """``host:port`` of every peer, without duplicates, in the given order."""
    found: dict[str, None] = {}
    for peer in peers:
        match = _PEER.fullmatch(peer.strip())
        if match is None or not 0 < int(match["port"]) < 65536:
            raise _bad_peer_error(peer)
        host, port = match["host"], int(match["port"])
        if match["scheme"] in ("spark", "http"):  # a list of workers writes a fixed address as http://
            found[f"{host}:{port}"] = None
            continue
        if match["scheme"] == "k8s":
            if host.count(".") != 1:
                raise ConfigError(
                    f"'{peer}' must name a service and its namespace: k8s://service.namespace:port"
                )
            host += ".svc.cluster.local"
        for address in lookup(host, port):
            found[f"[{address}]:{port}" if ":" in address else f"{address}:{port}"] = None
    return list(found)


def _bad_peer_error(peer: str) -> ConfigError:
    encrypted = _PEER.fullmatch(peer.strip().replace("https://", "http://", 1))
    if encrypted is not None and peer.strip().startswith("https://"):
        return ConfigError(
            f"peer '{peer}' uses https, and a Spark master speaks Spark's own protocol",
            next_step=f"write spark://{encrypted['host']}:{encrypted['port']}, and set spark.ssl.* and "
            "spark.network.crypto.enabled under [engine] conf to encrypt it",
        )
    return ConfigError(
        f"'{peer}' is not the address of a peer",
        next_step="write spark://host:port, dns://host:port or k8s://service.namespace:port",
    )


def _addresses(host: str, port: int) -> list[str]:
    """Every address of a host name; none if it is unknown."""
    try:
        answers = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except OSError:
        return []
    return sorted({str(answer[4][0]) for answer in answers})


def _parse_partitions(value: object) -> int | None:
    if value in (None, "auto"):
        return None
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        raise ConfigError(f'[engine] shuffle_partitions is a number from 1 or "auto", not {value!r}')
    return value


def _parse_memory(value: object) -> str | None:
    if value in (None, "auto"):
        return None
    if not isinstance(value, str) or not _MEMORY.fullmatch(value):
        raise ConfigError(f'[engine] memory is a size as "512m" or "4g", not {value!r}')
    return value.lower()


def _parse_purpose(value: object) -> Purpose:
    if value == "short" or value == "long":
        return value
    raise ConfigError(f'[engine] purpose is "short" or "long", not {value!r}')


def _parse_conf(table: object) -> dict[str, str]:
    if not isinstance(table, Mapping):
        raise ConfigError('[engine] conf is a table of Spark settings, as { "spark.executor.memory" = "8g" }')
    conf = {}
    for key, value in table.items():
        if not str(key).startswith("spark."):
            raise ConfigError(
                f"[engine] conf: '{key}' is not a setting of Spark", next_step="they begin with 'spark.'"
            )
        if not isinstance(value, str | int | float | bool):
            raise ConfigError(f"[engine] conf: '{key}' is neither text nor a number")
        conf[str(key)] = str(value).lower() if isinstance(value, bool) else str(value)
    return conf
