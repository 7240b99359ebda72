"""One worker process of a load: ``python -m ematix_probe.load.worker``, started by `load.processes` alone.

It reads its share from standard input, says that it is ready, waits for the time of the start, and writes
snapshots and its result as JSON to standard output. It stops when standard input ends.
"""

from __future__ import annotations

import dataclasses
import json
import os
import pickle
import signal
import struct
import sys
import threading
import traceback
from typing import Any, BinaryIO

from ematix_probe.load.shares import Publish, Ready, Share, ShareResult, Snapshot, StopSignal


def write_frame(file: BinaryIO, value: Any) -> None:
    data = json.dumps(value).encode()
    file.write(struct.pack(">I", len(data)) + data)
    file.flush()


def read_frame(file: BinaryIO) -> Any:
    """The next value; None at the end of the file."""
    data = read_bytes(file)
    return None if data is None else json.loads(data)


def read_bytes(file: BinaryIO) -> bytes | None:
    head = file.read(4)
    if len(head) < 4:
        return None
    (size,) = struct.unpack(">I", head)
    data = file.read(size)
    return data if len(data) == size else None


def main() -> int:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent stops its workers
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # what a user's function prints must not mix with the answers
    questions = sys.stdin.buffer
    sent = read_bytes(questions)
    if sent is None:
        return 1
    lock = threading.Lock()

    def answer(kind: str, value: Any) -> None:
        with lock:
            write_frame(answers, [kind, value])

    try:
        share: Share = pickle.loads(sent)  # from the parent's own pipe
        stop = StopSignal()

        def ready() -> int:
            answer("ready", os.getpid())
            start_at = read_frame(questions)
            if not isinstance(start_at, int):
                raise BrokenPipeError
            threading.Thread(target=_wait_for_stop, args=(questions, stop), daemon=True).start()
            return start_at

        result = run_share(share, ready, lambda each: answer("snapshot", dataclasses.astuple(each)), stop)
        answer("result", result.to_json())
    except BrokenPipeError:
        return 1
    except BaseException as error:
        text = "".join(traceback.format_exception_only(type(error), error)).strip()
        answer("failure", [text, traceback.format_exc()])
        return 1
    return 0


def _wait_for_stop(questions: BinaryIO, stop: StopSignal) -> None:
    read_frame(questions)
    stop.set()


def run_share(share: Share, ready: Ready, publish: Publish, stop: StopSignal) -> ShareResult:
    """Carry out a share of either kind of target."""
    if share.target.kind == "http":
        from ematix_probe.load.http_load import run_http_share

        return run_http_share(share, ready, publish, stop)
    from ematix_probe.load.sql_load import run_sql_share

    return run_sql_share(share, ready, publish, stop)


def snapshot_from(value: list[Any]) -> Snapshot:
    fields = list(value)
    fields[3] = tuple((cell, count) for cell, count in fields[3])
    return Snapshot(*fields)


if __name__ == "__main__":
    code = main()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)  # a thread may still wait for standard input
