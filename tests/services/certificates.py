"""A certificate authority of the tests' own, and a server certificate that it signed."""

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


def _openssl(*arguments: str) -> None:
    program = shutil.which("openssl")
    if program is None:
        raise ServiceUnavailable("tests of TLS need  openssl  on the path")
    done = subprocess.run([program, *arguments], capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise ServiceUnavailable(f"openssl {arguments[0]} failed:\n{done.stderr}")
