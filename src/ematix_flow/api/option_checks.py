"""Checks the options of batch and streaming pipelines. Each error points at the user's line."""

from __future__ import annotations

import datetime as dt
import inspect
import re
import warnings
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from ematix_flow.api.expectations import is_probe
from ematix_flow.errors import DeclarationError, did_you_mean
from ematix_flow.spec.durations import try_parse_duration
from ematix_flow.spec.location import SourceLocation
from ematix_flow.spec.pipelines import DELETE_POLICIES, MODES, Mode, PostTransform, TargetSpec
from ematix_flow.spec.schedules import BadSchedule, Schedule
from ematix_flow.spec.streams import SPARK_DIALECTS
from ematix_flow.spec.tables import TableSpec
from ematix_flow.spec.time_zones import is_time_zone, time_zone_hint
from ematix_flow.spec.transforms import PreTransform, is_pre_transform

_SELECTOR_NAME = re.compile(r"\w[\w./-]*")
_LONGEST_SECONDS = 200 * 366 * 86_400  # what every database can add to a time


class TransformRef:
    """A named transform, looked up when the pipeline runs."""

    def __init__(self, name: str) -> None:
        if not isinstance(name, str):
            raise DeclarationError(f"transform_ref() takes a name, not {name!r}")
        self.name = name

    def __repr__(self) -> str:
        return f"transform_ref({self.name!r})"


def normalize_mode(mode: str, where: SourceLocation | None) -> Mode:
    """The mode, with ``merge`` for its other name ``scd1``. Raises DeclarationError for an unknown mode."""
    if mode == "scd1":
        return "merge"
    for known in MODES:
        if mode == known:
            return known
    names = (*MODES, "scd1")
    hint = did_you_mean(str(mode).lower(), names) or f" Known: {', '.join(names)}"
    raise DeclarationError(f"mode={mode!r} is unknown.{hint}", where=where)


def check_choice(
    option: str, value: str | None, allowed: Iterable[str], where: SourceLocation | None
) -> None:
    if value is not None and value not in tuple(allowed):
        raise DeclarationError(
            f"{option}={value!r} is unknown.{did_you_mean(str(value), allowed)}", where=where
        )


def check_sql_dialect(option: str, value: str | None, where: SourceLocation | None) -> None:
    """Require a known SQL dialect, by its name in lower case, or None."""
    if value is None or value in SPARK_DIALECTS:
        return
    from sqlglot import Dialects

    check_choice(option, value, sorted({*SPARK_DIALECTS, *(each.value for each in Dialects)} - {""}), where)


def check_whole_number(option: str, value: Any, least: int, where: SourceLocation | None) -> None:
    """Require a whole number of at least ``least``, or None."""
    if value is None:
        return
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        raise DeclarationError(f"{option}= takes a whole number from {least} up, not {value!r}", where=where)


def check_texts(where: SourceLocation | None, **given: Any) -> None:
    """Require that every option is text or None."""
    for option, value in given.items():
        if value is not None and not isinstance(value, str):
            raise DeclarationError(f"{option}= takes text, not {value!r}", where=where)


def name_or_default(kind: str, value: Any, otherwise: str, where: SourceLocation | None) -> str:
    """The given name, or the default when it is None. An empty name is an error."""
    if value is None:
        return otherwise
    if not isinstance(value, str) or not value.strip():
        raise DeclarationError(
            f"a {kind} needs a name, and name={value!r} is not one",
            where=where,
            next_step=f"write a name, or leave name= out to call it {otherwise!r}",
        )
    return value


def check_list(option: str, value: Any, where: SourceLocation | None) -> None:
    """Require a list, a tuple or None. A plain string would be read letter by letter."""
    if value is not None and not isinstance(value, list | tuple):
        raise DeclarationError(
            f"{option}= takes a list, not {value!r}", where=where, next_step=f"write {option}=[…]"
        )


def check_flag(option: str, value: Any, where: SourceLocation | None) -> None:
    if not isinstance(value, bool):
        raise DeclarationError(f"{option}= takes True or False, not {value!r}", where=where)


def read_selector_names(option: str, value: Any, where: SourceLocation | None) -> tuple[str, ...]:
    """The names as a tuple without repetition. A selector can contain letters, digits and ``_ . / -``."""
    if value is None:
        return ()
    given = [value] if isinstance(value, str) else value
    if not isinstance(given, list | tuple | set | frozenset):
        raise DeclarationError(f"{option}= takes names, not {value!r}", where=where)
    for name in given:
        if not isinstance(name, str) or not _SELECTOR_NAME.fullmatch(name):
            raise DeclarationError(
                f"{option}= takes names of letters, digits and _ . / - , not {name!r}", where=where
            )
    return tuple(dict.fromkeys(sorted(given) if isinstance(given, set | frozenset) else given))


def check_schedule(schedule: str | None, timezone: str | None, where: SourceLocation | None) -> None:
    """Require a cron line of five fields and an IANA time zone."""
    if timezone is not None:
        if schedule is None:
            raise DeclarationError("timezone= is the time zone of schedule=, which is not set", where=where)
        given: object = timezone
        if not isinstance(given, str):
            raise DeclarationError(
                f"timezone= takes the name of a time zone, not {given!r}",
                where=where,
                next_step="use a name from the IANA database, such as Europe/Berlin",
            )
        if not is_time_zone(timezone):
            raise DeclarationError(
                f"timezone={timezone!r} is not known.{time_zone_hint(timezone)}",
                where=where,
                next_step="use a name from the IANA database, such as Europe/Berlin",
            )
    if schedule is not None:
        if not isinstance(schedule, str):
            raise DeclarationError(f"schedule= takes a cron line, not {schedule!r}", where=where)
        try:
            Schedule(schedule, timezone or "UTC").check()
        except BadSchedule as error:
            raise DeclarationError(
                f"schedule={schedule!r} is not a cron expression: {error}",
                where=where,
                next_step='write minute, hour, day, month and weekday, as in "*/5 * * * *", or @daily',
            ) from error


def read_seconds(option: str, value: Any, where: SourceLocation | None) -> float | None:
    """The seconds of a number or a timedelta that is not negative; None for None."""
    if value is None:
        return None
    number = value.total_seconds() if isinstance(value, dt.timedelta) else value
    if isinstance(number, bool) or not isinstance(number, int | float) or not number >= 0:
        raise DeclarationError(f"{option}= takes seconds or a timedelta, not {value!r}", where=where)
    if number > _LONGEST_SECONDS:
        raise DeclarationError(f"{option}= is longer than 200 years: {value!r}", where=where)
    return float(number)


def read_duration(option: str, value: Any, where: SourceLocation | None) -> float | None:
    """The seconds, above zero, of a number, a timedelta, or text such as ``90s``, ``15m``, ``6h``, ``2d``."""
    found = try_parse_duration(value) if isinstance(value, str) else value
    if isinstance(value, str) and found is None:
        raise DeclarationError(
            f"{option}={value!r} is not a duration",
            where=where,
            next_step='write "90s", "15m", "6h" or "2d"',
        )
    number = read_seconds(option, found, where)
    if number == 0:
        raise DeclarationError(f"{option}= must be more than 0: no load is that fresh", where=where)
    return number


def check_freshness_column(
    name: str | None, sla: object, targets: Sequence[TargetSpec], where: SourceLocation | None
) -> None:
    """Require a column of the only target. Its newest value says how fresh the target is."""
    if name is None:
        return
    if sla is None:
        raise DeclarationError("freshness_column= works with freshness_sla=, which is not set", where=where)
    if len(targets) > 1:
        raise DeclarationError("freshness_column= is for a pipeline with one target", where=where)
    table = targets[0].table
    if table is None or name not in table.column_names:
        known = did_you_mean(name, table.column_names if table else ())
        raise DeclarationError(
            f"freshness_column= names {name!r}, which is not a column of {targets[0].label}.{known}",
            where=where,
        )


def function_parameters(function: Any, where: SourceLocation | None) -> list[inspect.Parameter]:
    """The parameters of a decorated or given function. Raises DeclarationError for anything else."""
    try:
        return list(inspect.signature(function).parameters.values())
    except (TypeError, ValueError):
        raise DeclarationError(
            f"expected a function, not {function!r}", where=where, next_step="write  def name(conn): …"
        ) from None


def count_arguments(function: Callable[..., Any], where: SourceLocation | None) -> int:
    """The number of required positional arguments: 0, 1 (source connection) or 2 (source and target)."""
    kinds = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    parameters = function_parameters(function, where)
    required = [p for p in parameters if p.default is p.empty]
    if any(p.kind not in kinds for p in required) or len(required) > 2:
        raise DeclarationError(
            f"{getattr(function, '__name__', function)!r} takes {len(required)} arguments; "
            "a pipeline's function takes none, (conn) or (source, target)",
            where=where,
        )
    return len(required)


def read_pre_transforms(
    value: Sequence[Any] | None, where: SourceLocation | None
) -> tuple[PreTransform, ...]:
    check_list("transforms_pre", value, where)
    for item in value or ():
        if not is_pre_transform(item):
            raise DeclarationError(
                f"transforms_pre= takes transforms, data probes and expectations, not {item!r}",
                where=where,
                next_step="from ematix_flow.transforms import deduplicate_by, filter_where, …",
            )
    return tuple(value or ())


def read_post_transforms(
    value: Sequence[Any] | None, where: SourceLocation | None
) -> tuple[tuple[PostTransform, ...], dict[int, Any]]:
    """The steps as values, and the functions and probes among the steps by step number."""
    check_list("transforms_post", value, where)
    steps: list[PostTransform] = []
    functions: dict[int, Any] = {}
    for index, item in enumerate(value or ()):
        if isinstance(item, str):
            steps.append(PostTransform("sql", item))
        elif isinstance(item, TransformRef):
            steps.append(PostTransform("reference", item.name))
        elif is_probe(item):
            functions[index] = item
            steps.append(PostTransform("probe", item.name))
        elif callable(item):
            count = len(function_parameters(item, where))
            if count not in (1, 2):
                raise DeclarationError(
                    f"a post-load function takes (conn) or (conn, parent), and {item!r} takes {count}",
                    where=where,
                )
            functions[index] = item
            steps.append(PostTransform("function", getattr(item, "__qualname__", repr(item))))
        else:
            raise DeclarationError(
                "transforms_post= takes SQL, functions, data probes and ematix.transform_ref(…), "
                f"not {item!r}",
                where=where,
            )
    return tuple(steps), functions


def check_target(target: TargetSpec, where: SourceLocation | None) -> None:
    """Refuse options that do not fit the mode, and names that are not columns."""
    mode, table = target.mode, target.table
    if target.event_timestamp_column is not None and mode != "scd2":
        raise DeclarationError(f"event_timestamp_column= works with mode='scd2', not {mode!r}", where=where)
    if target.ttl_seconds is not None and mode != "scd2":
        raise DeclarationError(f"ttl_seconds= works with mode='scd2', not {mode!r}", where=where)
    if target.handle_deletes is not None:
        check_choice("handle_deletes", target.handle_deletes, DELETE_POLICIES, where)
        if mode not in ("merge", "scd2"):
            raise DeclarationError(
                f"handle_deletes= works with mode='merge' and 'scd2', not {mode!r}", where=where
            )
    shrink: object = target.max_shrink
    if isinstance(shrink, bool) or not isinstance(shrink, int | float) or not 0 <= shrink <= 1:
        raise DeclarationError(
            f"max_shrink= takes a fraction from 0 to 1, not {target.max_shrink!r}", where=where
        )
    if table is None:
        return
    listed = {
        "keys": target.keys,
        "update_columns": target.update_columns or (),
        "compare_columns": target.compare_columns or (),
        "event_timestamp_column": (target.event_timestamp_column,) if target.event_timestamp_column else (),
        "partition_by": target.partition_by,
    }
    for option, given in listed.items():
        for name in given:
            if name not in table.column_names:
                raise DeclarationError(
                    f"{option}= names {name!r}, which is not a column of {table.label}."
                    f"{did_you_mean(name, table.column_names)}",
                    where=where,
                )


def resolve_keys(
    table: TableSpec | None,
    explicit: Sequence[str],
    mode: Mode,
    where: SourceLocation | None,
    *,
    stacklevel: int = 5,
) -> tuple[str, ...]:
    """The columns by which rows are matched. Warns if they differ from the primary key.

    The first of these that is given wins: keys=, ``__merge_keys__``, the first natural_key() group, the first
    of ``__unique_constraints__``, pk().
    """
    if mode not in ("merge", "scd2") or table is None:
        return tuple(explicit)
    if explicit:
        return tuple(explicit)
    for origin, found in (
        ("__merge_keys__", table.merge_keys),
        ("natural_key()", table.natural_keys[0] if table.natural_keys else ()),
        ("__unique_constraints__", table.unique[0] if table.unique else ()),
    ):
        if found:
            if table.primary_key and set(found) != set(table.primary_key):
                warnings.warn(
                    f"{table.label}: rows are matched by ({', '.join(found)}) from {origin}, "
                    f"not by the primary key ({', '.join(table.primary_key)}); pass keys= to choose",
                    UserWarning,
                    stacklevel=stacklevel,
                )
            return tuple(found)
    if not table.primary_key:
        raise DeclarationError(
            f"mode={mode!r} matches rows by key, and {table.label} declares none",
            where=where,
            next_step="mark a column with pk() or natural_key(), or pass keys=",
        )
    return table.primary_key
