"""What all secret stores share: splitting a reference, a time limit, a short cache.

The requests to a vendor and the meaning of its errors are in the vendor's module.
"""

from __future__ import annotations

import importlib
import json
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from concurrent.futures import Future, wait
from typing import Any, ClassVar

from ematix_flow.errors import CannotConnect, ConfigError, MissingSecret, did_you_mean

CACHE_SECONDS = 60.0  # a secret that was changed is seen after this at the latest
CONNECT_SECONDS = 3.0
READ_SECONDS = 5.0
TOTAL_SECONDS = 10.0  # for a login and all requests together, also if the vendor's library waits longer

# what a store holds under a name: text, or several named values
Secret = str | Mapping[str, Any]


class SecretStore(ABC):
    """Resolves ``name`` and ``name#field``. Each secret is read at most once a minute."""

    prefix: ClassVar[str]

    def __init__(self) -> None:
        self._kept: dict[str, tuple[float, Secret]] = {}
        self._lock = threading.Lock()

    @abstractmethod
    def read(self, name: str) -> Secret:
        """Read the current secret. Raises a FlowError that names the store."""

    def split_reference(self, reference: str) -> tuple[str, str]:
        """The name of the secret, and the field or an empty text."""
        name, _, field = reference.partition("#")
        return name, field

    def resolve(self, reference: str) -> str:
        name, field = self.split_reference(reference)
        if not name.strip("/ "):
            raise ConfigError(f"${{{self.prefix}:{reference}}} names no secret")
        secret = self._read_cached(name)
        if field:
            return _field_of(secret, field, f"{self.prefix}:{name}")
        return secret if isinstance(secret, str) else json.dumps(secret)

    def _read_cached(self, name: str) -> Secret:
        with self._lock:
            until, secret = self._kept.get(name, (0.0, ""))
            if time.monotonic() < until:
                return secret
            secret = _with_time_limit(
                TOTAL_SECONDS, lambda: self.read(name), f"{self.prefix}:{name} could not be read: no answer"
            )
            self._kept[name] = (time.monotonic() + CACHE_SECONDS, secret)
            return secret


def import_client(module: str, prefix: str, extra: str) -> Any:
    """Import the vendor's library. Raises ConfigError with the command that installs it."""
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise ConfigError(
            f"${{{prefix}:…}} needs the Python package {error.name or module!r}, which is not installed",
            next_step=f'pip install "ematix-flow-spark[{extra}]"',
        ) from error


def _with_time_limit(seconds: float, read: Callable[[], Secret], what: str) -> Secret:
    """Return the result of ``read``, or raise CannotConnect after this many seconds.

    The timeouts of the libraries start again with each byte: a server that sends a byte now and then would
    block them forever.
    """
    answer: Future[Secret] = Future()

    def work() -> None:
        try:
            answer.set_result(read())
        except BaseException as error:
            answer.set_exception(error)

    threading.Thread(target=work, name="ematix-flow-secret", daemon=True).start()
    if not wait((answer,), seconds).done:
        raise CannotConnect(
            f"{what} within {seconds:g} s", next_step="see whether the secret store is up and can be reached"
        )
    return answer.result()


def _field_of(secret: Secret, field: str, where: str) -> str:
    fields = _parse_json(secret, field, where) if isinstance(secret, str) else secret
    value = fields.get(field)
    if value is None:
        empty = "is null" if field in fields else f"is not there.{did_you_mean(field, fields)}"
        raise MissingSecret(
            f"the field {field!r} of the secret {where} {empty}",
            state=f"its fields: {', '.join(sorted(fields)) or 'none'}",
        )
    return value if isinstance(value, str) else json.dumps(value)


def _parse_json(text: str, field: str, where: str) -> Mapping[str, Any]:
    try:
        found = json.loads(text)
    except json.JSONDecodeError:
        found = None
    if isinstance(found, dict):
        return found
    # raised outside of the handler: the decoder's error carries the secret's text
    raise ConfigError(
        f"the secret {where} is not a JSON object, so it has no field {field!r}",
        next_step=f"write ${{{where}}} to use the whole secret",
    )
