"""`flow mcp --http`: the MCP server as an application behind the guard of `flow web`, at `TOOLS_PATH`.

Each request stands alone: there are no sessions, and nothing is kept between two requests.
"""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator

from mcp.server.streamable_http_manager import StreamableHTTPASGIApp, StreamableHTTPSessionManager
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from ematix_flow.mcp.assistant_server import AssistantServer
from ematix_flow.web.answers import JSON, error_bytes
from ematix_flow.web.guard import MAX_BODY_BYTES, TOOLS_PATH, BodyTooLarge


class ToolsApp:
    """The application of one MCP server."""

    def __init__(self, assistant: AssistantServer) -> None:
        self._site = assistant.site
        # the guard checks hosts and origins
        self._manager = StreamableHTTPSessionManager(
            assistant.server, json_response=True, stateless=True, max_request_body_size=MAX_BODY_BYTES
        )
        self.asgi = Starlette(
            routes=[Route(TOOLS_PATH, StreamableHTTPASGIApp(self._manager), methods=["POST"])],
            exception_handlers={BodyTooLarge: _refuse_body},
            lifespan=self._lifespan,
        )

    def prepare_stop(self) -> None:
        """End the processes that answers wait for. Every answer is one document: no stream stays open."""
        self._site.commands.close()

    @contextlib.asynccontextmanager
    async def _lifespan(self, _: Starlette) -> AsyncIterator[None]:
        try:
            async with self._manager.run():
                yield
        finally:
            self._site.close()


def _refuse_body(request: Request, error: Exception) -> Response:
    assert isinstance(error, BodyTooLarge)
    return Response(error_bytes(error), 413, media_type=JSON)
