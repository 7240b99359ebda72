"""The options of commands that serve over HTTP: where they listen, and the tokens that open them."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

HostOption = Annotated[
    str, typer.Option("--host", metavar="ADDRESS", help="Where to listen; other than loopback with TLS.")
]
PortOption = Annotated[
    int, typer.Option("--port", metavar="N", min=0, max=65_535, help="The port; 0 takes a free one.")
]
TokenOption = Annotated[
    str | None,
    typer.Option("--token", metavar="TOKEN", help="The operator's token; a file keeps it out of ps."),
]
TokenFileOption = Annotated[
    Path | None, typer.Option("--token-file", metavar="FILE", help="A file with the operator's token.")
]
ReaderTokenFileOption = Annotated[
    Path | None,
    typer.Option("--reader-token-file", metavar="FILE", help="A file with a token that may only look."),
]
TlsCertOption = Annotated[
    Path | None, typer.Option("--tls-cert", metavar="FILE", help="The certificate, with its chain.")
]
TlsKeyOption = Annotated[Path | None, typer.Option("--tls-key", metavar="FILE", help="Its key.")]
BehindProxyOption = Annotated[
    str | None,
    typer.Option("--behind-proxy", metavar="URL", help="The address of the proxy that has the TLS."),
]
AllowHostOption = Annotated[
    list[str] | None,
    typer.Option("--allow-host", metavar="NAME", help="A further name of this server; may be repeated."),
]
