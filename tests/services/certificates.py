"""A certificate authority of the tests' own, and the certificates of servers and clients that it signed."""

from __future__ import annotations

import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

from tests.services.process import ServiceUnavailable


@dataclass(frozen=True)
class Certificates:
    """Files in PEM form; the server's is good for ``localhost`` and 127.0.0.1."""

    authority: Path
    certificate: Path
    key: Path


def make_certificates(folder: Path) -> Certificates:
    """A new authority and a server certificate below ``folder``."""
    folder.mkdir(parents=True, exist_ok=True)
    authority, authority_key = folder / "ca.pem", folder / "ca-key.pem"
    certificate, key, request = folder / "server.pem", folder / "server-key.pem", folder / "server.csr"
    extensions = folder / "extensions"
    extensions.write_text("subjectAltName=DNS:localhost,IP:127.0.0.1\nextendedKeyUsage=serverAuth\n")
    _openssl(
        *("req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=tests authority"),
        *("-addext", "keyUsage=critical,keyCertSign,cRLSign"),
        *("-keyout", str(authority_key), "-out", str(authority)),
    )
    _openssl(
        *("req", "-newkey", "rsa:2048", "-nodes", "-subj", "/CN=localhost"),
        *("-keyout", str(key), "-out", str(request)),
    )
    _openssl(
        *("x509", "-req", "-in", str(request), "-days", "2", "-extfile", str(extensions)),
        *("-CA", str(authority), "-CAkey", str(authority_key), "-CAcreateserial", "-out", str(certificate)),
    )
    return Certificates(authority, certificate, key)


@dataclass(frozen=True)
class ClientCertificate:
    """Files in PEM form; the key is encrypted when it was made with a password."""

    certificate: Path
    key: Path


def make_client_certificate(folder: Path, name: str, *, password: str = "") -> ClientCertificate:
    """A client's certificate, signed by the authority that `make_certificates` made in ``folder``."""
    certificate, key, request = (folder / f"{name}{end}" for end in (".pem", "-key.pem", ".csr"))
    extensions = folder / f"{name}-extensions"
    extensions.write_text("extendedKeyUsage=clientAuth\n")
    secret = ("-passout", f"pass:{password}") if password else ("-nodes",)
    _openssl(
        *("req", "-newkey", "rsa:2048", *secret, "-subj", f"/CN={name}"),
        *("-keyout", str(key), "-out", str(request)),
    )
    _openssl(
        *("x509", "-req", "-in", str(request), "-days", "2", "-extfile", str(extensions)),
        *("-CA", str(folder / "ca.pem"), "-CAkey", str(folder / "ca-key.pem"), "-CAcreateserial"),
        *("-out", str(certificate)),
    )
    return ClientCertificate(certificate, key)


def _openssl(*arguments: str) -> None:
    program = shutil.which("openssl")
    if program is None:
        raise ServiceUnavailable("tests of TLS need  openssl  on the path")
    done = subprocess.run([program, *arguments], capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise ServiceUnavailable(f"openssl {arguments[0]} failed:\n{done.stderr}")
