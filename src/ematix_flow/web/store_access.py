"""The stores next to one run log, opened when they are first needed, and again after they were away."""

from __future__ import annotations

import functools
import os
import threading
import time
from collections.abc import Callable
from typing import Any, Protocol, TypeVar

from ematix_flow.backends.state_stores.run_logs import (
    is_server,
    open_actions,
    open_run_log,
    open_samples,
    open_slots,
)
from ematix_flow.errors import CannotConnect, ConfigError, FlowError
from ematix_flow.spec.connections import mask_url
from ematix_flow.state.actions.base import ActionStore
from ematix_flow.state.local_stores import run_log_vanished
from ematix_flow.state.pinned_files import PinnedFile
from ematix_flow.state.runlog.base import RunLog, run_log_location
from ematix_flow.state.samples.base import SampleStore
from ematix_flow.state.slots.base import SlotStore

_READER_SECONDS = 30.0  # after which a log that is only read is opened again: its file may exist now


class StoreAway(FlowError):
    """The run log, or a store next to it, cannot be reached or used. No other database raises it."""

    exit_code = CannotConnect.exit_code

    def __init__(self, error: FlowError) -> None:
        super().__init__(error.what, where=error.where, state=error.state, next_step=error.next_step)


class Closable(Protocol):
    def close(self) -> None: ...


S = TypeVar("S")


class _Watched:
    """A store whose calls raise StoreAway when it cannot be reached or used."""

    def __init__(self, store: object) -> None:
        self._store = store

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._store, name)
        return functools.partial(_call, found) if callable(found) else found


def _call(function: Callable[..., S], *given: Any, **named: Any) -> S:
    try:
        return function(*given, **named)
    except (CannotConnect, ConfigError) as error:
        raise StoreAway(error) from error


class StoreAccess:
    """The stores at one URL, opened once and again after a failure. Safe for several threads."""

    def __init__(self, url: str, *, read_only: bool) -> None:
        self.url, self.read_only = url, read_only
        self._lock = threading.RLock()
        self._opened: dict[str, Closable] = {}
        self._opened_at = time.monotonic()
        self._file: PinnedFile | None = None  # of a run log in a file, once there is one

    @property
    def location(self) -> str:
        return mask_url(self.url)

    @property
    def is_object_store(self) -> bool:
        return is_server(self.url) and self.url.partition("://")[0] in (
            "s3",
            "gs",
            "gcs",
            "azure",
            "azureblob",
        )

    def run_log(self) -> RunLog:
        return self._open(
            "run log",
            lambda: open_run_log(self.url, env=os.environ, reading=True, read_only=self.read_only),
        )

    def slots(self) -> SlotStore:
        return self._open(
            "slots",
            lambda: open_slots(self.url, env=os.environ, keep_open=True, read_only=self.read_only),
        )

    def actions(self) -> ActionStore:
        return self._open(
            "actions",
            lambda: open_actions(self.url, env=os.environ, keep_open=True, read_only=self.read_only),
        )

    def samples(self) -> SampleStore:
        return self._open(
            "samples",
            lambda: open_samples(self.url, env=os.environ, keep_open=True, read_only=self.read_only),
        )

    def _open(self, name: str, opened: Callable[[], S]) -> S:
        with self._lock:
            self._require_same_file()
            if self.read_only and time.monotonic() - self._opened_at > _READER_SECONDS:
                self.close()
            found = self._opened.get(name)
            if found is None:
                found = self._opened[name] = _Watched(_call(opened))
                self._opened_at = time.monotonic()
                self._pin_file()
            return found  # type: ignore[return-value]  # each name has one kind of store

    def _pin_file(self) -> None:
        path = None if is_server(self.url) else run_log_location(self.url, os.environ).path
        if path is not None and self._file is None and path.exists():
            self._file = PinnedFile(path)

    def _require_same_file(self) -> None:
        """Raise StoreAway if the file was deleted: to open another store would make it again, empty."""
        if self._file is not None and not self._file.is_in_place():
            raise StoreAway(run_log_vanished(self._file.path))

    def close(self) -> None:
        """Close what is open; the next use opens it again."""
        with self._lock:
            opened, self._opened = list(self._opened.values()), {}
        for store in opened:
            store.close()
