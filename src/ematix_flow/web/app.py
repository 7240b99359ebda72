"""The application: the table of endpoints as routes, the pages, sessions and events."""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import replace
from typing import Any, TypeVar

from starlette.applications import Starlette
from starlette.requests import ClientDisconnect, Request
from starlette.responses import RedirectResponse, Response, StreamingResponse
from starlette.routing import BaseRoute, Route

from ematix_flow.errors import FlowError, UsageError
from ematix_flow.graph.registry import use_registry
from ematix_flow.web.access import Access
from ematix_flow.web.answers import JSON, Answer, Refused, error_bytes, json_bytes, status_of
from ematix_flow.web.changes import Change, ChangePoller, store_change
from ematix_flow.web.endpoints import Call, Endpoint, Handler, ReadSubject, Viewer
from ematix_flow.web.events import EventHub, TooManyReaders
from ematix_flow.web.guard import BASE, BodyTooLarge, NotAllowed, is_from_another_site
from ematix_flow.web.handler_threads import HandlerThreads
from ematix_flow.web.openapi import document
from ematix_flow.web.raw_routes import RawRoute
from ematix_flow.web.routes import endpoints
from ematix_flow.web.site import Site
from ematix_flow.web.static_files import StaticFiles
from ematix_flow.web.store_access import StoreAway

THREADS, _MOST_WAITING = 8, 200
SLOW_THREADS, MOST_SLOW_WAITING = 2, 8  # plans, ledgers and checks of connections: each may take minutes
POLL_SECONDS, OBJECT_POLL_SECONDS = 1.0, 5.0
_IDLE_SECONDS = 60.0  # without a reader or a request, nothing is polled
_log = logging.getLogger(__name__)
Respond = Callable[[Request], Awaitable[Response]]
T = TypeVar("T")


class WebApp:
    """One server's application. ``asgi`` is what the HTTP server calls, behind the guard."""

    def __init__(self, site: Site, access: Access, *, static: StaticFiles | None = None) -> None:
        self.site, self.access = site, access
        self.hub, self.poller = EventHub(), ChangePoller(site)
        self._static = static or StaticFiles()
        self._threads = HandlerThreads("ematix-flow-web", THREADS, _MOST_WAITING, "the store")
        self._slow_threads = HandlerThreads(
            "ematix-flow-slow", SLOW_THREADS, MOST_SLOW_WAITING, "a plan, a ledger or a check of a connection"
        )
        self._poll_thread = HandlerThreads("ematix-flow-poll", 1, 1, "the poll of the store")
        self._shared: dict[tuple[str, str], asyncio.Future[Answer]] = {}  # by endpoint and subject
        self._last_asked = 0.0
        self._is_away = False
        self._loop: asyncio.AbstractEventLoop | None = None
        self.endpoints = endpoints(site.module)
        self.asgi = Starlette(
            routes=[*self._routes(self.endpoints), Route("/{path:path}", self._page, methods=["GET"])],
            lifespan=self._lifespan,
        )

    # ------------------------------------------------------------------ routes

    def _routes(self, table: Sequence[Endpoint]) -> list[BaseRoute]:
        """The routes of the table, and one for every other path below /api."""
        rest = Route("/api/{path:path}", self._no_route, methods=["GET", "POST", "PUT", "PATCH", "DELETE"])
        return [
            *(RawRoute(f"{BASE}{each.path}", self._responder(each), methods=[each.method]) for each in table),
            rest,
        ]

    def _responder(self, endpoint: Endpoint) -> Respond:
        handler = endpoint.handler
        if isinstance(handler, str):
            own: dict[str, Respond] = {
                "begin_session": self._begin_session,
                "end_session": self._end_session,
                "openapi": self._openapi,
                "events": self._events,
            }
            return own[handler]

        async def respond(request: Request) -> Response:
            viewer: Viewer = request.scope["viewer"]
            if endpoint.role == "operator" and viewer.role != "operator":
                return _refused(403, NotAllowed(f"{viewer.role}s may only look"))
            try:
                arguments = endpoint.read_arguments(request.path_params, request.query_params.multi_items())
                body = await _read_body(request) if endpoint.body is not None else {}
                call = Call(arguments, viewer, body)
                answer = (
                    _to_answer(handler(self.site, call))
                    if endpoint.is_direct
                    else await self._shared_answer(endpoint, endpoint.subject, handler, call)
                    if endpoint.subject is not None
                    else await self._answer(endpoint, handler, call)
                )
            except Refused as refused:
                return self._failed(refused.error, refused.status)
            except BodyTooLarge as error:
                return _refused(413, error)
            except FlowError as error:
                return self._failed(error, status_of(error))
            except ClientDisconnect:
                return Response(status_code=400)
            except Exception as error:
                _log.exception("%s %s failed", endpoint.method, endpoint.path)
                text = f"unexpected {type(error).__name__}"
                return _refused(500, FlowError(text, next_step="the log of flow web has the details"))
            return _json_response(request, answer)

        return respond

    async def _answer(self, endpoint: Endpoint, handler: Handler, call: Call) -> Answer:
        threads = self._slow_threads if endpoint.is_slow else self._threads
        return await self._in_thread(threads, lambda site, call: _to_answer(handler(site, call)), call)

    async def _shared_answer(
        self, endpoint: Endpoint, subject: ReadSubject, handler: Handler, call: Call
    ) -> Answer:
        """The answer that another request for the same subject waits for already, or else a new one."""
        key = endpoint.path, await self._in_thread(self._threads, subject, call)
        answer = self._shared.get(key)
        if answer is None:
            answer = self._shared[key] = asyncio.ensure_future(self._answer(endpoint, handler, call))
            answer.add_done_callback(lambda _: self._shared.pop(key))
        return await asyncio.shield(answer)  # who waits may leave; the others get it

    async def _in_thread(self, threads: HandlerThreads, work: Callable[[Site, Call], T], call: Call) -> T:
        """Work in one of few threads: a slow store delays requests, and no more."""
        self._last_asked = asyncio.get_running_loop().time()

        def with_registry() -> T:
            with use_registry(self.site.registry):  # connections are found by it
                return work(self.site, call)

        return await threads.run(with_registry)

    def _failed(self, error: FlowError, status: int) -> Response:
        if isinstance(error, StoreAway):
            self._store_is_away(error)
        return _refused(status, error)

    def _store_is_away(self, error: StoreAway) -> None:
        """Open the stores again at the next call. Log the failure and tell the readers once."""
        if not self._is_away:
            _log.warning("%s", error.what)
            self.hub.publish([store_change("away")])
        self._is_away = True
        self.poller.forget()
        self.site.overview.mark_unavailable()
        self._threads.submit(self.site.stores.close)

    def _store_answers(self) -> None:
        """Tell once that the store is back. A request may succeed without it, so only a poll knows."""
        if self._is_away:
            self._is_away = False
            _log.warning("the run log answers again")
            self.hub.publish([store_change("back")])

    # ------------------------------------------------------------------ sessions and pages

    async def _begin_session(self, request: Request) -> Response:
        try:
            given = (await _read_body(request)).get("token")
        except BodyTooLarge as error:
            return _refused(413, error)
        except UsageError as error:
            return _refused(400, error)
        viewer = self.access.viewer_of_token(given) if isinstance(given, str) else None
        if viewer is None:
            if self.access.is_one_too_many():
                return _refused(429, NotAllowed("too many wrong tokens", next_step="try again in a minute"))
            return _refused(401, NotAllowed("this is not a token of this server"))
        cookie = {"set-cookie": self.access.session_cookie(viewer)}
        return Response(json_bytes({"role": viewer.role}), media_type=JSON, headers=cookie)

    async def _end_session(self, request: Request) -> Response:
        return Response(status_code=204, headers={"set-cookie": self.access.ended_cookie()})

    async def _page(self, request: Request) -> Response:
        given = request.query_params.get("code")
        if given is not None and request.url.path == "/":
            return self._begin_by_code(given, is_foreign=is_from_another_site(request.headers))
        found = self._static.find(request.url.path)
        if found is None:
            return Response(status_code=404)
        headers = {"etag": found.tag, "cache-control": found.cache_control, "content-type": found.kind}
        if request.headers.get("if-none-match") == found.tag:
            return Response(status_code=304, headers=headers)
        return Response(found.content, headers=headers)

    def _begin_by_code(self, given: str, *, is_foreign: bool) -> Response:
        """Begin a session by the address that was printed, and take its code out of the address."""
        viewer = None if is_foreign else self.access.use_code(given)
        headers = {"cache-control": "no-store"}
        if viewer is None:
            return RedirectResponse("/?sign-in=refused", status_code=303, headers=headers)
        headers["set-cookie"] = self.access.session_cookie(viewer)
        return RedirectResponse("/", status_code=303, headers=headers)

    async def _openapi(self, request: Request) -> Response:
        made = document(self.endpoints, self.site.version)
        return Response(json_bytes(made), media_type=JSON)

    async def _no_route(self, request: Request) -> Response:
        path = request.url.path[:200]
        step = f"GET {BASE}/openapi.json  lists what there is"
        return _refused(404, UsageError(f"there is no {request.method} {path}", next_step=step))

    # ------------------------------------------------------------------ events

    async def _events(self, request: Request) -> Response:
        try:
            reader = self.hub.join()
        except TooManyReaders as error:
            return _refused(429, error)
        headers = {"cache-control": "no-store", "x-accel-buffering": "no"}
        return StreamingResponse(reader.stream(), media_type="text/event-stream", headers=headers)

    def prepare_stop(self) -> None:
        """End every reader of events, and the processes that requests wait for: the server stops."""
        self.hub.close()
        self.site.commands.close()

    @contextlib.asynccontextmanager
    async def _lifespan(self, _: Starlette) -> AsyncIterator[None]:
        self._loop = asyncio.get_running_loop()
        polling = asyncio.create_task(self._poll())
        try:
            yield
        finally:
            polling.cancel()
            self.hub.close()
            with contextlib.suppress(asyncio.CancelledError):
                await polling
            for threads in (self._threads, self._slow_threads, self._poll_thread):
                threads.shutdown()
            self.site.close()

    def publish(self, changes: list[Change]) -> None:
        """Tell every reader of these changes; may be called from any thread."""
        if self._loop is not None:
            self._loop.call_soon_threadsafe(self.hub.publish, changes)

    def poll_once(self) -> list[Change]:
        """Read what changed, also into the overview: a reader who hears of a change sees it."""
        changes = self.poller.poll()
        self.site.overview.refresh()
        return changes

    async def _poll(self) -> None:
        """Poll the store while anybody looks, and tell every reader what changed."""
        loop = asyncio.get_running_loop()
        pause = OBJECT_POLL_SECONDS if self.site.stores.is_object_store else POLL_SECONDS
        was_idle = True
        self._last_asked = loop.time()
        while True:
            is_idle = not len(self.hub) and loop.time() - self._last_asked > _IDLE_SECONDS
            if not is_idle:
                if was_idle:
                    self.poller.forget()
                try:
                    self.hub.publish(await self._poll_thread.run(self.poll_once))
                    self._store_answers()
                except StoreAway as error:
                    self._store_is_away(error)
                except Exception:
                    _log.exception("a poll of the store failed")
                    self.poller.forget()
            was_idle = is_idle
            await asyncio.sleep(pause)


def _to_answer(value: Any) -> Answer:
    """The answer with its bytes, which are made in the thread of the handler."""
    answer = value if isinstance(value, Answer) else Answer(value)
    return replace(answer, body=answer.to_bytes())


async def _read_body(request: Request) -> dict[str, Any]:
    """The JSON object of a body; an empty body is an empty object."""
    text = await request.body()
    if not text:
        return {}
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):
        raise UsageError("the body is not JSON") from None
    if not isinstance(found, dict):
        raise UsageError("the body is not a JSON object")
    return found


def _json_response(request: Request, answer: Answer) -> Response:
    return Response(answer.to_bytes(), answer.status, dict(answer.headers), media_type=JSON)


def _refused(status: int, error: FlowError) -> Response:
    headers = {"retry-after": "5"} if status in (429, 503) else None
    return Response(error_bytes(error), status, headers, media_type=JSON)
