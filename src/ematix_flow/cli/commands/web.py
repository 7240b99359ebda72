"""``flow web``: serves a page over the pipelines of a module and their runs."""

from __future__ import annotations

import os
import sys
from contextlib import ExitStack
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
    from ematix_flow.cli.served_site import carrying_out, needs_extra, open_site
    from ematix_flow.cli.signals import stop_requests
    from ematix_flow.errors import UsageError

    with needs_extra("flow web", "web"):
        from ematix_flow.web.server import Binding, WebServer
    from ematix_flow.web.access import find_tokens

    if read_only and with_scheduler:
        raise UsageError("--read-only only shows, and --with-scheduler runs: give one of them")
    tokens = find_tokens(os.environ, token, token_file, reader_token_file)
    binding = Binding(host, port, tls_cert, tls_key, behind_proxy, tuple(allow_host or ()))
    binding.check(tokens)
    site, carrier = open_site(module, run_log, engine, read_only=read_only, with_scheduler=with_scheduler)
    with ExitStack() as running:
        running.enter_context(log_info_of("ematix_flow.schedule"))
        stop = running.enter_context(stop_requests(say, "stopping; press again to stop at once"))
        server = WebServer(site, binding, tokens, user=user_name())
        running.callback(server.close)
        if with_scheduler:
            running.enter_context(background_scheduler(site.registry, site.module, run_log, engine, stop))
        running.enter_context(carrying_out(site, carrier))
        write(f"open {server.address}", sys.stderr)  # unmasked: the address has a code
        if server.tokens.is_fresh:  # unmasked: this is the one place where it can be read
            write(f"sign in again with the token {server.tokens.operator}", sys.stderr)
        say("Ctrl-C stops")
        if open_browser:
            import webbrowser

            webbrowser.open(server.address)
        server.run(stop)
    say("stopped")
