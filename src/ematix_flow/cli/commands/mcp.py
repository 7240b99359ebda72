"""``flow mcp``: serves the project to an assistant, as tools of the Model Context Protocol."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Annotated

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

if TYPE_CHECKING:
    from ematix_flow.web.access import Tokens
    from ematix_flow.web.server import Binding

app = new_app()


@app.command()
def mcp(
    module: ModuleOption = None,
    run_log: RunLogOption = None,
    allow_actions: Annotated[
        bool, typer.Option("--allow-actions", help="Also let it run, restart, stop, pause and resume.")
    ] = False,
    http: Annotated[
        bool, typer.Option("--http", help="Serve over HTTP instead of stdin and stdout.")
    ] = False,
    host: HostOption = "127.0.0.1",
    port: PortOption = 8090,
    token: TokenOption = None,
    token_file: TokenFileOption = None,
    reader_token_file: ReaderTokenFileOption = None,
    tls_cert: TlsCertOption = None,
    tls_key: TlsKeyOption = None,
    behind_proxy: BehindProxyOption = None,
    allow_host: AllowHostOption = None,
    engine: EngineOption = None,
) -> None:
    """Serve pipelines, runs and their failures to an assistant, as tools of the Model Context Protocol.

    An assistant starts it as a process and speaks to it over stdin and stdout. With --http it is a server,
    opened by the token of  flow web  (EMATIX_FLOW_WEB_TOKEN, EMATIX_FLOW_WEB_READER_TOKEN). It only reads,
    unless --allow-actions is given.
    """
    from ematix_flow.cli.served_site import find_listener, needs_extra

    with needs_extra("flow mcp", "mcp"):
        from ematix_flow.mcp.assistant_server import AssistantServer as AssistantServer
        from ematix_flow.web.server import HttpServer as HttpServer
    if not http:
        _serve_stdio(module, run_log, engine, allow_actions)
        return
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
    _serve_http(module, run_log, engine, allow_actions, binding, tokens)


def _serve_stdio(module: str | None, run_log: str | None, engine: str | None, allow_actions: bool) -> None:
    from ematix_flow.cli.action_work import user_name
    from ematix_flow.cli.served_site import carrying_out, open_site
    from ematix_flow.mcp.assistant_server import VIA, AssistantServer
    from ematix_flow.mcp.stdio import serve_stdio, taken_streams
    from ematix_flow.web.endpoints import Viewer

    with taken_streams() as wire:
        site, carrier = open_site(module, run_log, engine, read_only=not allow_actions)
        viewer = Viewer("operator" if allow_actions else "reader", user_name(), VIA)
        with carrying_out(site, carrier):
            serve_stdio(AssistantServer(site, viewer), wire)


def _serve_http(
    module: str | None,
    run_log: str | None,
    engine: str | None,
    allow_actions: bool,
    binding: Binding,
    tokens: Tokens,
) -> None:
    from ematix_flow.cli.action_work import user_name
    from ematix_flow.cli.served_site import open_site, serving
    from ematix_flow.mcp.assistant_server import AssistantServer
    from ematix_flow.mcp.http import ToolsApp
    from ematix_flow.web.guard import TOOLS_PATH
    from ematix_flow.web.server import HttpServer

    site, carrier = open_site(module, run_log, engine, read_only=not allow_actions)
    assistant = AssistantServer(site, None)

    def make_server() -> HttpServer:
        return HttpServer(lambda access: ToolsApp(assistant), binding, tokens, user=user_name())

    with serving(make_server, site, carrier) as (server, stop):
        write(f"serving {server.origin}{TOOLS_PATH}", sys.stderr)
        if server.tokens.is_fresh:  # unmasked: this is the one place where it can be read
            write(f"send  Authorization: Bearer {server.tokens.operator}", sys.stderr)
        say("Ctrl-C stops")
        server.run(stop)
