"""``flow web``: serves a page over the pipelines of a module and their runs."""

from __future__ import annotations

import sys
from contextlib import nullcontext
from typing import Annotated

import typer

from ematix_flow.cli.command_group import new_app
from ematix_flow.cli.listen_options import (
    AllowHostOption,
    BehindProxyOption,
    HostOption,
    PortOption,
    ReaderTokenFileOption,
    TlsCertOption,
    TlsKeyOption,
    TokenFileOption,
    TokenOption,
)
from ematix_flow.cli.options import EngineOption, ModuleOption, RunLogOption
from ematix_flow.cli.terminal import say, write

app = new_app()


@app.command()
def web(
    module: ModuleOption = None,
    run_log: RunLogOption = None,
    host: HostOption = "127.0.0.1",
    port: PortOption = 8080,
    open_browser: Annotated[bool, typer.Option("--open", help="Open the page in the browser.")] = False,
    read_only: Annotated[bool, typer.Option("--read-only", help="Only show: no action is possible.")] = False,
    with_scheduler: Annotated[
        bool, typer.Option("--with-scheduler", help="Be the scheduler too: run slots when they are due.")
    ] = False,
    token: TokenOption = None,
    token_file: TokenFileOption = None,
    reader_token_file: ReaderTokenFileOption = None,
    tls_cert: TlsCertOption = None,
    tls_key: TlsKeyOption = None,
    behind_proxy: BehindProxyOption = None,
    allow_host: AllowHostOption = None,
    engine: EngineOption = None,
) -> None:
    """Serve a page with the state of pipelines, streams and runs. Ctrl-C stops it.

    On loopback a fresh token is made and printed, and the printed address signs in once.
    EMATIX_FLOW_WEB_TOKEN sets one, and EMATIX_FLOW_WEB_READER_TOKEN one that may only look.
    """
    from ematix_flow.cli.action_work import user_name
    from ematix_flow.cli.background_scheduler import background_scheduler
    from ematix_flow.cli.json_log import log_info_of
    from ematix_flow.cli.served_site import find_listener, needs_extra, open_site, serving
    from ematix_flow.errors import UsageError

    with needs_extra("flow web", "web"):
        from ematix_flow.web.server import WebServer

    if read_only and with_scheduler:
        raise UsageError("--read-only only shows, and --with-scheduler runs: give one of them")
    binding, tokens = find_listener(
        host=host,
        port=port,
        token=token,
        token_file=token_file,
        reader_token_file=reader_token_file,
        tls_cert=tls_cert,
        tls_key=tls_key,
        behind_proxy=behind_proxy,
        allow_host=allow_host,
    )
    site, carrier = open_site(module, run_log, engine, read_only=read_only, with_scheduler=with_scheduler)
    with (
        log_info_of("ematix_flow.schedule"),
        serving(lambda: WebServer(site, binding, tokens, user=user_name()), site, carrier) as (server, stop),
        background_scheduler(site.registry, site.module, run_log, engine, stop)
        if with_scheduler
        else nullcontext(),
    ):
        write(f"open {server.address}", sys.stderr)  # unmasked: the address has a code
        if server.tokens.is_fresh:  # unmasked: this is the one place where it can be read
            write(f"sign in again with the token {server.tokens.operator}", sys.stderr)
        say("Ctrl-C stops")
        if open_browser:
            import webbrowser

            webbrowser.open(server.address)
        server.run(stop)
