"""A history in a bucket: one JSON object a run, below a folder for its probe and one for its month.

An object is visible when it is complete, and never changes. So several processes may write at once, a
process that dies leaves no half run, and what was read need not be read again.
"""

from __future__ import annotations

import dataclasses
import datetime as dt
import hashlib
import itertools
import json
import re
import secrets
import threading
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

from ematix_probe.errors import CannotConnect, HistoryError
from ematix_probe.history.base import HistoryStore
from ematix_probe.history.buckets import Bucket, location_of, open_bucket, secrets_of
from ematix_probe.history.records import RecordedRun, run_from_dict
from ematix_probe.redaction import remember_secret

_VERSION = 1
_PARALLEL = 8  # requests at the same time
_RANDOM_BITS = 11  # an id is a number of milliseconds and a random rest; JavaScript can hold it until 2109
_EPOCH = dt.datetime(1970, 1, 1, tzinfo=dt.timezone.utc)
_LAST_MILLISECOND = 253_402_300_799_999  # of the year 9999
_PLAIN = re.compile(r"[A-Za-z0-9_-]")
_PAST_PAGES = 10  # an assertion is looked for in so many times more runs than are wanted
_KEPT = 2_000  # documents of this process's memory


class ObjectHistory(HistoryStore):
    def __init__(self, url: str, kind: str) -> None:
        for secret in secrets_of(url):
            remember_secret(secret)
        self._url, self._kind = url, kind
        self.location = location_of(url, kind)
        self._opened: Bucket | None = None
        self._known: dict[str, RecordedRun] = {}
        self._last_id, self._lock = 0, threading.Lock()

    # -------------------------------------------------------------------------------------- writing

    def add(self, run: RecordedRun) -> int:
        run_id = self._new_id()
        document = {"version": _VERSION, **dataclasses.replace(run, id=run_id).to_dict()}
        # the rest of the name tells two runs with one id apart
        name = f"{run_id:017d}-{secrets.token_hex(4)}.json"
        content = json.dumps(document, ensure_ascii=False).encode()
        with self._bucket() as bucket:
            path = f"{bucket.path}/{_folder(run.probe_name)}/{_month(run_id)}/{name}"
            if self._kind == "az":  # whose client wants the folder first
                bucket.files.create_dir(path.rpartition("/")[0], recursive=True)
            with bucket.files.open_output_stream(path) as stream:
                stream.write(content)
        return run_id

    def _new_id(self) -> int:
        """An id above those that this process has given, also within one millisecond."""
        milliseconds = (dt.datetime.now(dt.timezone.utc) - _EPOCH) // dt.timedelta(milliseconds=1)
        drawn = (milliseconds << _RANDOM_BITS) | secrets.randbits(_RANDOM_BITS)
        with self._lock:
            self._last_id = max(drawn, self._last_id + 1)
            return self._last_id

    def prune(self, probe: str, keep: int, before: dt.datetime | None) -> int:
        with self._bucket() as bucket:
            deleted = 0
            for path in itertools.islice(self._paths(bucket, _folder(probe), None), keep, None):
                if before is not None and _time(_id(path)) >= before:
                    continue
                bucket.files.delete_file(path)
                self._known.pop(path, None)
                deleted += 1
        return deleted

    # -------------------------------------------------------------------------------------- reading

    def newest(self, probe: str | None, limit: int, before: int | None) -> Sequence[RecordedRun]:
        found = self._read_newest(probe, limit, before)
        return [dataclasses.replace(run, assertions=()) for run in found]

    def details(self, probe: str, limit: int) -> Sequence[RecordedRun]:
        return self._read_newest(probe, limit, None)

    def get(self, id: int) -> RecordedRun | None:
        with self._bucket() as bucket:

            def look(folder: str) -> str | None:
                month = f"{bucket.path}/{folder}/{_month(id)}"
                return next((path for path in _entries(bucket, month) if _id(path) == id), None)

            with ThreadPoolExecutor(_PARALLEL) as pool:
                paths = [path for path in pool.map(look, self._folders(bucket)) if path]
            return self._read(bucket, paths[:1])[0] if paths else None

    def past(self, probe: str, assertion: str, limit: int) -> Sequence[Mapping[str, Any]]:
        found: list[Mapping[str, Any]] = []
        before = None
        for _ in range(_PAST_PAGES):
            runs = self._read_newest(probe, limit, before)
            named = (each for run in runs for each in run.assertions if each.name == assertion)
            found += [each.measures for each in named if each.measures]
            if len(found) >= limit or len(runs) < limit:
                break
            before = runs[-1].id
        return found[:limit]

    def probes(self) -> Sequence[str]:
        with self._bucket() as bucket:
            with ThreadPoolExecutor(_PARALLEL) as pool:
                newest = pool.map(
                    lambda folder: next(self._paths(bucket, folder, None), None), self._folders(bucket)
                )
            return sorted({run.probe_name for run in self._read(bucket, [path for path in newest if path])})

    def check(self) -> str:
        with self._bucket() as bucket:
            number = len(self._folders(bucket))
        return (
            f"it has runs of {number} probe{'' if number == 1 else 's'}"
            if number
            else "no run is recorded yet"
        )

    def _read_newest(self, probe: str | None, limit: int, before: int | None) -> list[RecordedRun]:
        with self._bucket() as bucket:
            folders = self._folders(bucket) if probe is None else [_folder(probe)]
            with ThreadPoolExecutor(_PARALLEL) as pool:
                each = pool.map(
                    lambda folder: list(itertools.islice(self._paths(bucket, folder, before), limit)), folders
                )
                paths = sorted(itertools.chain.from_iterable(each), key=_id, reverse=True)
            return self._read(bucket, paths[:limit])

    def _folders(self, bucket: Bucket) -> list[str]:
        return [path.rpartition("/")[2] for path in _entries(bucket, bucket.path)]

    def _paths(self, bucket: Bucket, folder: str, before: int | None) -> Iterator[str]:
        """The paths of the runs of a probe, newest first, read month by month."""
        for month in sorted(_entries(bucket, f"{bucket.path}/{folder}"), reverse=True):
            if before is not None and month.rpartition("/")[2] > _month(before):
                continue
            for path in sorted(_entries(bucket, month), reverse=True):
                if before is None or _id(path) < before:
                    yield path

    def _read(self, bucket: Bucket, paths: Sequence[str]) -> list[RecordedRun]:
        def read(path: str) -> RecordedRun:
            with bucket.files.open_input_stream(path) as stream:
                document = json.loads(stream.read())
            if not isinstance(document, dict):
                raise TypeError(f"{path} holds no JSON object")
            if document.get("version", 0) > _VERSION:
                raise HistoryError(
                    f"the history {self.location} was written by a later version of ematix-probe",
                    state="the history is unchanged",
                    next_step="upgrade ematix-probe, or name another history",
                )
            return run_from_dict(document)

        missing = [path for path in paths if path not in self._known]
        with ThreadPoolExecutor(_PARALLEL) as pool:
            found = dict(zip(missing, pool.map(read, missing), strict=True))
        runs = [found.get(path) or self._known[path] for path in paths]
        if len(self._known) + len(found) > _KEPT:
            self._known.clear()
        self._known.update(found)
        return runs

    @contextmanager
    def _bucket(self) -> Iterator[Bucket]:
        try:
            if self._opened is None:
                self._opened = open_bucket(self._url, self._kind)
            yield self._opened
        except OSError as error:
            raise CannotConnect(
                f"the history {self.location} cannot be used: {error}",
                next_step="check the bucket's name and what its keys allow, or name another with --history",
            ) from error
        except (KeyError, TypeError, ValueError) as error:
            raise HistoryError(
                f"the history {self.location} has an object that is no run: {error}",
                next_step="use a prefix where nothing else is kept",
            ) from error


def _entries(bucket: Bucket, folder: str) -> list[str]:
    """The paths of what is in a folder: objects, and folders below it."""
    from pyarrow import fs

    selector = fs.FileSelector(folder, allow_not_found=True, recursive=not bucket.lists_folders)
    start = len(folder) + 1
    names = {each.path[start:].partition("/")[0] for each in bucket.files.get_file_info(selector)}
    return [f"{folder}/{name}" for name in names if name]


def _folder(probe: str) -> str:
    """A probe's name as one part of a key: unique, and only of characters that every server accepts."""
    encoded = "".join(c if _PLAIN.match(c) else "".join(f"~{byte:02x}" for byte in c.encode()) for c in probe)
    if len(encoded) <= 200:
        return encoded
    return f"{encoded[:100]}~~{hashlib.sha256(probe.encode()).hexdigest()}"


def _id(path: str) -> int:
    name = path.rpartition("/")[2].partition("-")[0]
    return int(name) if name.isdigit() else -1


def _time(run_id: int) -> dt.datetime:
    return _EPOCH + dt.timedelta(milliseconds=min(run_id >> _RANDOM_BITS, _LAST_MILLISECOND))


def _month(run_id: int) -> str:
    return f"{_time(run_id):%Y-%m}"
