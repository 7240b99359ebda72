"""Reads change events: what one message says that happened to one row, and where that is in the source's log.

A position is a text of digits that sorts in the order of the source's log, under any collation: numbers of a
fixed width, joined by dots. It ends with the message's own position, which decides between events of the same
place in the log.
"""

from __future__ import annotations

import base64
import datetime as dt
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import orjson

from ematix_flow.backends.payloads.json_values import JsonNumber
from ematix_flow.backends.payloads.value_conversion import display_value
from ematix_flow.spec.cdc import CDC, OPERATIONS, EnvelopePaths, Operation
from ematix_flow.spec.change_positions import WIDTH, ZERO, open_position, snapshot_position

UNAVAILABLE = "__debezium_unavailable_value"
UNAVAILABLE_TEXTS = (UNAVAILABLE, base64.b64encode(UNAVAILABLE.encode()).decode())
_SNAPSHOT_OPERATIONS = ("r", "bootstrap-insert")  # never replace a change
_DEBEZIUM_OPERATIONS: dict[str, Operation] = {
    name: OPERATIONS[name] for name in ("c", "u", "d", "r", "t")
} | {"m": "ignore"}
_MAXWELL_OPERATIONS: dict[str, Operation] = {
    "insert": "upsert",
    "update": "upsert",
    "delete": "delete",
    "bootstrap-insert": "upsert",
    **dict.fromkeys(("bootstrap-start", "bootstrap-complete", "heartbeat"), "ignore"),
    **dict.fromkeys(
        (f"{what}-{how}" for what in ("table", "database") for how in ("create", "alter", "drop")), "ignore"
    ),
}
_KNOWN_OPERATIONS: dict[str, dict[str, Operation]] = {
    "debezium": _DEBEZIUM_OPERATIONS,
    "maxwell": _MAXWELL_OPERATIONS,
    "custom": {},
}
_BOOTSTRAP_COLUMNS = ("database_name", "table_name", "is_complete", "inserted_rows", "client_id")
_LONG_WIDTH, _MOST = 80, 10**WIDTH
_EPOCH = dt.datetime(1970, 1, 1, tzinfo=dt.timezone.utc)
_BEFORE_ALL = ZERO  # the position of rows that were read before any change of the log
_FILE_NUMBER = re.compile(r"(\d+)$", re.ASCII)
_SQL_SERVER_LSN = re.compile(r"([0-9a-f]{8}):([0-9a-f]{8}):([0-9a-f]{4})", re.ASCII | re.IGNORECASE)


class BadChange(Exception):
    """A message that is no change event; the text says why."""


@dataclass(frozen=True)
class ChangeEvent:
    """One change. ``row`` is the row after it, or the deleted row; ``before`` its old values, if known.

    ``schemas`` are Debezium's schemas of the row's fields, if the message has them.
    """

    op: Operation
    row: Mapping[str, Any]
    before: Mapping[str, Any]
    position: str
    envelope: Mapping[str, Any]
    schemas: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)


def read_change(cdc: CDC, message: Mapping[str, Any], arrival: str) -> ChangeEvent | None:
    """The change of a message; None if it has none. ``arrival`` is the message's position at the broker."""
    envelope, schemas = message, dict[str, Mapping[str, Any]]()
    if cdc.envelope == "debezium" and "payload" in message and cdc.paths.op[0] not in message:
        found = message["payload"]
        if found is None:
            return None
        if not isinstance(found, dict):
            raise BadChange(f"'payload' is {display_value(found)}, not an object")
        envelope, schemas = found, _row_schemas(message.get("schema"), cdc.paths)
    paths = cdc.paths
    op = _operation(cdc, envelope, paths)
    if op == "ignore":
        return None
    after, before = _row(envelope, paths.after), _row(envelope, paths.before)
    if cdc.envelope == "maxwell" and _is_bootstrap_request(envelope, after):
        return None
    position = change_position(cdc, envelope, arrival)
    if op == "truncate":
        return ChangeEvent(op, {}, {}, position, envelope)
    if cdc.envelope == "maxwell":
        row = after
        before = {**(after or {}), **before} if before and op == "upsert" else None
    else:
        row = after if op == "upsert" else before or after
    if row is None and op == "upsert":
        raise BadChange(
            f"the message has no {'.'.join(paths.after)!r}, and its operation needs the row there"
        )
    return ChangeEvent(op, row or {}, before or {}, position, envelope, schemas)


def change_time(cdc: CDC, envelope: Mapping[str, Any]) -> dt.datetime:
    """When the source made the change. Raises BadChange if the message does not say."""
    path = cdc.paths.ts
    found = value_at(envelope, path)
    if cdc.envelope == "debezium" and cdc.ts_field is None:
        exact = value_at(envelope, (*path[:-1], "ts_us"))  # newer versions have it
        found = exact if exact is not None else found
    if found is None:
        raise BadChange(f"the message has no {'.'.join(path)!r}, the time from which the version holds")
    micros = _iso_micros(found, ".".join(path)) if _is_text(found) else _epoch_micros(found)
    try:
        if micros is not None:
            return _EPOCH + dt.timedelta(microseconds=micros)
    except OverflowError:
        pass  # the error below says it
    raise BadChange(f"{'.'.join(path)!r} is {display_value(found)}, which is no time")


def change_position(cdc: CDC, envelope: Mapping[str, Any], arrival: str) -> str:
    """Where the change is in the source's log. ``arrival`` is the message's position at the broker."""
    paths = cdc.paths
    log_position = _log_position(cdc, envelope, paths)
    is_snapshot = value_at(envelope, paths.op) in _SNAPSHOT_OPERATIONS
    if log_position == _BEFORE_ALL and not arrival.isdigit() and not is_snapshot:
        raise BadChange(
            "neither the message nor the broker has a position that orders the changes: name a field of the "
            "message that does with ts_field="
        )
    return f"{log_position}.{pad_position(arrival)}"


def value_at(message: Mapping[str, Any], path: Sequence[str]) -> Any:
    """The value at a path; None if there is none."""
    found: Any = message
    for name in path:
        found = found.get(name) if isinstance(found, dict) else None
    return found


def pad_position(arrival: str) -> str:
    """A position at the broker as a text that sorts like the number."""
    digits = arrival if arrival.isascii() and arrival.isdigit() else ""
    return digits.zfill(WIDTH if len(digits) <= WIDTH else _LONG_WIDTH)


def _operation(cdc: CDC, envelope: Mapping[str, Any], paths: EnvelopePaths) -> Operation:
    found = value_at(envelope, paths.op)
    if found is None or isinstance(found, (dict, list)):
        raise BadChange(f"the message has no operation at {'.'.join(paths.op)!r}")
    name = ("true" if found else "false") if isinstance(found, bool) else str(found)
    if name in cdc.op_map:
        return OPERATIONS[cdc.op_map[name]]
    operation = _KNOWN_OPERATIONS[cdc.envelope].get(name)
    if operation is None:
        raise BadChange(f"{'.'.join(paths.op)!r} is {display_value(name)}, which is not a known operation")
    return operation


def _row(envelope: Mapping[str, Any], path: Sequence[str]) -> Mapping[str, Any] | None:
    found = value_at(envelope, path) if path else None
    if found is not None and not isinstance(found, dict):
        raise BadChange(f"{'.'.join(path)!r} is {display_value(found)}, not an object")
    return found


def _is_bootstrap_request(envelope: Mapping[str, Any], row: Mapping[str, Any] | None) -> bool:
    """Whether the row is of Maxwell's own table ``bootstrap``, which some versions send to the same topic."""
    return envelope.get("table") == "bootstrap" and all(name in (row or {}) for name in _BOOTSTRAP_COLUMNS)


def _row_schemas(schema: Any, paths: EnvelopePaths) -> dict[str, Mapping[str, Any]]:
    """The schema of each field of the row, from the schema that Debezium sends with a message."""
    parts = schema.get("fields") if isinstance(schema, dict) else None
    for part in parts if isinstance(parts, list) else ():
        if isinstance(part, dict) and part.get("field") == paths.after[-1]:
            listed = part.get("fields") or ()
            return {str(each["field"]): each for each in listed if isinstance(each, dict) and "field" in each}
    return {}


# ------------------------------------------------------------------ positions in the source's log


def _log_position(cdc: CDC, envelope: Mapping[str, Any], paths: EnvelopePaths) -> str:
    if cdc.envelope == "debezium" and cdc.ts_field is None:
        return _debezium_position(envelope, paths)
    if cdc.envelope == "maxwell" and cdc.ts_field is None:
        return _maxwell_position(envelope)
    if not cdc.ts_field:
        return _BEFORE_ALL
    found = value_at(envelope, paths.ts)
    if found is None:
        raise BadChange(f"the message has no {'.'.join(paths.ts)!r}, which orders the changes (ts_field=)")
    return _moment(found, ".".join(paths.ts))


def _debezium_position(envelope: Mapping[str, Any], paths: EnvelopePaths) -> str:
    source = envelope.get("source")
    source = source if isinstance(source, dict) else {}
    if _whole(source.get("lsn")) is not None:
        return _postgres_position(source, is_read=value_at(envelope, paths.op) == "r")
    if source.get("file") and _whole(source.get("pos")) is not None:
        parts = (_file_number(source["file"]), source["pos"], source.get("row") or 0)
        return ".".join(_padded(part) for part in parts)
    commit, change = source.get("commit_lsn"), source.get("change_lsn")
    if isinstance(commit, str) and _SQL_SERVER_LSN.fullmatch(commit):
        both = (commit, change if isinstance(change, str) else "00000000:00000000:0000")
        return f"{'.'.join(map(_sql_server_lsn, both))}.{_padded(source.get('event_serial_no') or 0)}"
    if source.get("connector") in ("postgresql", "mysql", "mariadb"):
        if value_at(envelope, paths.op) == "r":
            return _BEFORE_ALL
        raise BadChange("'source' has neither 'lsn' nor 'file' and 'pos', which order the changes")
    found = value_at(envelope, paths.ts)
    if found is None:
        found = envelope.get("ts_ms")
    return _BEFORE_ALL if found is None else _moment(found, ".".join(paths.ts))


def _postgres_position(source: Mapping[str, Any], *, is_read: bool) -> str:
    place = _padded(source["lsn"])
    has_commit, commit = False, None
    try:
        found = orjson.loads(source["sequence"])
        has_commit, commit = len(found) == 2, found[0]
    except (KeyError, TypeError, ValueError):
        pass  # an older Debezium has no sequence
    if has_commit and commit is not None:
        return f"{_padded(commit)}.{place}"
    if is_read:
        return snapshot_position(place)
    return open_position(place) if has_commit else f"{place}.{place}"


def _maxwell_position(envelope: Mapping[str, Any]) -> str:
    place = envelope.get("position")
    if not isinstance(place, str) or ":" not in place:
        return _BEFORE_ALL
    file, _, offset = place.rpartition(":")
    if not offset.isdigit():
        raise BadChange(f"'position' is {display_value(place)}, not a file and an offset")
    row = envelope.get("xoffset")  # the last row of a transaction has none
    return (
        f"{_padded(_file_number(file))}.{_padded(offset)}.{_padded(row) if row is not None else '9' * WIDTH}"
    )


def _file_number(name: Any) -> int:
    found = _FILE_NUMBER.search(str(name))
    if found is None:
        raise BadChange(f"the log file {display_value(str(name))} has no number, which orders the changes")
    return int(found[1])


def _sql_server_lsn(text: str) -> str:
    found = _SQL_SERVER_LSN.fullmatch(text)
    if found is None:
        raise BadChange(f"{display_value(text)} is no log position of SQL Server")
    return f"{int(found[1], 16):010d}{int(found[2], 16):010d}{int(found[3], 16):05d}"


def _whole(value: Any) -> int | None:
    if type(value) is int:
        return value if 0 <= value < _MOST else None
    if not isinstance(value, str):
        return None
    text = str(value)
    return int(text) if text.isascii() and text.isdigit() and len(text) <= WIDTH else None


def _padded(value: Any) -> str:
    number = _whole(value)
    if number is None:
        raise BadChange(f"{display_value(value)} is no position in a log")
    return f"{number:0{WIDTH}d}"


def _moment(value: Any, path: str) -> str:
    """A number as it is, or the microseconds of an ISO 8601 time."""
    number = _iso_micros(value, path) if _is_text(value) else _whole_number(value)
    if number is None or number < 0:
        raise BadChange(f"{path!r} is {display_value(value)}, which does not order the changes")
    return _padded(number)


def _is_text(value: Any) -> bool:
    return isinstance(value, str) and not isinstance(value, JsonNumber) and not value.isdigit()


def _iso_micros(value: str, path: str) -> int:
    try:
        moment = dt.datetime.fromisoformat(value.replace("Z", "+00:00"))
    except ValueError:
        raise BadChange(f"{path!r} is {display_value(value)}, neither a number nor a time") from None
    aware = moment if moment.tzinfo else moment.replace(tzinfo=dt.timezone.utc)
    return (aware - _EPOCH) // dt.timedelta(microseconds=1)


def _whole_number(value: Any) -> int | None:
    return int(value) if isinstance(value, float) and value.is_integer() else _whole(value)


def _epoch_micros(value: Any) -> int | None:
    """Seconds, milliseconds, microseconds or nanoseconds since 1970, by the size of the number."""
    number = _whole_number(value)
    if number is None:
        return None
    for limit, factor in ((10**11, 1_000_000), (10**14, 1_000), (10**17, 1)):
        if number < limit:
            return number * factor
    return number // 1_000
