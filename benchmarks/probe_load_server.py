"""The server of the benchmark of load probes: answers every request at once, as fast as Python can.

``python -m benchmarks.probe_load_server`` prints its port and, when its standard input ends, how many
requests it has answered.
"""

from __future__ import annotations

import asyncio
import sys
import threading

import uvloop

BODY = b'{"state": "paid"}'
ANSWER = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%s" % (
    len(BODY),
    BODY,
)


class Answering(asyncio.Protocol):
    answered = 0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport: asyncio.Transport = transport  # type: ignore[assignment]  # uvloop's is no asyncio one
        self.unread = b""

    def data_received(self, data: bytes) -> None:
        data = self.unread + data
        whole = data.count(b"\r\n\r\n")
        self.unread = data.rpartition(b"\r\n\r\n")[2]
        if whole:
            Answering.answered += whole
            self.transport.write(ANSWER * whole)


async def serve() -> None:
    loop = asyncio.get_running_loop()
    server = await loop.create_server(Answering, "127.0.0.1", 0, backlog=4096)
    print(server.sockets[0].getsockname()[1], flush=True)
    ended = asyncio.Event()

    def wait() -> None:
        sys.stdin.read()
        loop.call_soon_threadsafe(ended.set)

    threading.Thread(target=wait, daemon=True).start()
    await ended.wait()
    server.close()
    print(Answering.answered, flush=True)


if __name__ == "__main__":
    uvloop.run(serve())
