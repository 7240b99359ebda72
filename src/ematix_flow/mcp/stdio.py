"""`flow mcp` over stdin and stdout, for an assistant that starts it as a process.

Owns both streams while it serves: what the project or a library prints goes to stderr, and a process that is
started reads nothing.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import threading
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass

import anyio
from mcp.server.stdio import stdio_server

from ematix_flow.mcp.assistant_server import AssistantServer

_LONGEST_LINE = 1_000_000
_READ_BYTES = 65_536
_NO_JSON = b"\0"


@dataclass(frozen=True)
class Wire:
    """The descriptors on which the protocol is spoken."""

    reading: int
    writing: int


@contextlib.contextmanager
def taken_streams() -> Iterator[Wire]:
    """Within the block the protocol has stdin and stdout for itself; everything else gets stderr."""
    wire = Wire(os.dup(0), os.dup(1))
    nothing = os.open(os.devnull, os.O_RDONLY)
    try:
        os.dup2(nothing, 0)
        os.dup2(2, 1)
        yield wire
    finally:
        os.dup2(wire.reading, 0)
        os.dup2(wire.writing, 1)
        os.close(nothing)
        os.close(wire.writing)  # a thread may still read from the other


def serve_stdio(assistant: AssistantServer, wire: Wire) -> None:
    """Serve until stdin ends, or a signal raises KeyboardInterrupt."""
    try:
        asyncio.run(_serve(assistant, wire))
    finally:
        assistant.site.close()


async def _serve(assistant: AssistantServer, wire: Wire) -> None:
    with os.fdopen(wire.writing, "w", encoding="utf-8", newline="\n", closefd=False) as output:
        async with stdio_server(_Lines(wire.reading), anyio.wrap_file(output)) as (reading, writing):  # type: ignore[arg-type]  # only its lines are read
            server = assistant.server
            await server.run(reading, writing, server.create_initialization_options())


class _Lines:
    """The lines of a descriptor. A daemon thread reads them: the process can end while it is blocked."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._loop = asyncio.get_running_loop()
        self._queue: asyncio.Queue[str | None] = asyncio.Queue()
        threading.Thread(target=self._read, name="ematix-flow-stdin", daemon=True).start()

    async def __aiter__(self) -> AsyncIterator[str]:
        while (line := await self._queue.get()) is not None:
            yield line

    def _read(self) -> None:
        rest = b""
        with contextlib.suppress(RuntimeError):  # the loop is closed: the server has ended
            while block := self._read_block():
                *lines, rest = (rest + block).split(b"\n")
                for line in lines:
                    self._put(line)
                if len(rest) > _LONGEST_LINE:
                    rest = _NO_JSON  # the server refuses the line
            if rest:
                self._put(rest)
            self._loop.call_soon_threadsafe(self._queue.put_nowait, None)

    def _read_block(self) -> bytes:
        try:
            return os.read(self._descriptor, _READ_BYTES)
        except OSError:
            return b""

    def _put(self, line: bytes) -> None:
        text = line.decode("utf-8", "replace")
        self._loop.call_soon_threadsafe(self._queue.put_nowait, text)
