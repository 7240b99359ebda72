"""Certificates and keys as the Java client reads them: PEM text, the key as PKCS#8."""

from __future__ import annotations

import base64
import re
import socket
import ssl
from contextlib import suppress
from pathlib import Path

from ematix_flow.backends.kafka.cluster import KafkaCluster
from ematix_flow.errors import CannotConnect, ConfigError
from ematix_flow.spec.connections.brokers import KafkaConnection

_BLOCK = re.compile(r"-----BEGIN ([A-Z0-9 ]+)-----.*?-----END \1-----", re.DOTALL)
_PBES2 = bytes.fromhex("06092a864886f70d01050d")  # its name in the key's own encoding
_SECONDS = 5.0


def pem_text(path: Path) -> str:
    """The certificates of a file, without the comments that openssl writes between them."""
    text = _read_text(path)
    blocks = [found[0] for found in _BLOCK.finditer(text) if "CERTIFICATE" in found[1]]
    if not blocks:
        raise ConfigError(
            f"{path} holds no certificate in PEM form",
            next_step=f"openssl x509 -in {path} -out cert.pem  turns other forms into it",
        )
    return "\n".join(blocks)


def pem_key(path: Path, connection: str, password: str) -> str:
    """The private key of a file as PKCS#8, the only form Java reads; decrypted if Java cannot do it."""
    for found in _BLOCK.finditer(_read_text(path)):
        if found[1] == "PRIVATE KEY":
            return found[0]
        if found[1] == "ENCRYPTED PRIVATE KEY":
            return _decrypt(found[0], path, connection, password) if _uses_pbes2(found[0]) else found[0]
        if found[1].endswith("PRIVATE KEY"):
            raise ConfigError(
                f"tls_key_path of connection {connection!r} is {path}, an {found[1]} in its old form, "
                "which Spark's Kafka client cannot read",
                next_step=f"openssl pkcs8 -topk8 -nodes -in {path} -out key.pem  turns it into PKCS#8",
            )
    raise ConfigError(f"tls_key_path of connection {connection!r} is {path}, which holds no private key")


def _uses_pbes2(block: str) -> bool:
    """Whether it is encrypted with PBES2, openssl's default, which Kafka's Java client cannot decrypt."""
    body = "".join(line for line in block.splitlines() if "-----" not in line)
    with suppress(ValueError):
        return _PBES2 in base64.b64decode(body)
    return False


def _decrypt(block: str, path: Path, connection: str, password: str) -> str:
    try:
        from cryptography.hazmat.primitives import serialization
    except ImportError as error:
        raise ConfigError(
            f"tls_key_path of connection {connection!r} is {path}, encrypted in a way that Spark's Kafka "
            "client cannot decrypt",
            next_step="pip install cryptography, or encrypt it with  openssl pkcs8 -topk8 -v1 PBE-SHA1-3DES",
        ) from error
    try:
        key = serialization.load_pem_private_key(block.encode(), password.encode() if password else None)
    except (ValueError, TypeError) as error:
        raise ConfigError(
            f"the key at tls_key_path of connection {connection!r} ({path}) cannot be read: {error}",
            next_step="check tls_key_password",
        ) from error
    plain = serialization.NoEncryption()
    form = serialization.PrivateFormat.PKCS8
    return key.private_bytes(serialization.Encoding.PEM, form, plain).decode().strip()


def server_certificates(connection: KafkaConnection) -> str:
    """The certificates that the bootstrap servers and their brokers present now, unchecked."""
    found: dict[str, None] = {}
    reached: set[str] = set()
    for address in (*_split_addresses(connection.bootstrap_servers), *_broker_addresses(connection)):
        if address in reached:
            continue
        reached.add(address)
        host, _, port = address.rpartition(":")
        with suppress(OSError):
            found[_fetch_certificate(host.strip("[]"), int(port))] = None
    if not found:
        raise CannotConnect(
            f"no server of connection {connection.name!r} ({connection.bootstrap_servers}) shows a "
            "certificate",
            next_step="check bootstrap_servers and security_protocol",
        )
    return "\n".join(found)


def _broker_addresses(connection: KafkaConnection) -> list[str]:
    return [f"{broker.host}:{broker.port}" for broker in KafkaCluster(connection).metadata().brokers.values()]


def _split_addresses(servers: str) -> list[str]:
    named = [server.strip().rpartition("://")[2] for server in servers.split(",") if server.strip()]
    return [name if re.search(r":\d+$", name) else f"{name}:9092" for name in named]


def _fetch_certificate(host: str, port: int) -> str:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    with (
        socket.create_connection((host, port), timeout=_SECONDS) as plain,
        context.wrap_socket(plain, server_hostname=host) as secure,
    ):
        certificate = secure.getpeercert(binary_form=True)
    return ssl.DER_cert_to_PEM_cert(certificate or b"").strip()


def _read_text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except OSError as error:
        raise ConfigError(f"{path} cannot be read: {error.strerror}") from error
