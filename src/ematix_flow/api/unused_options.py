"""Refuses options of a pipeline that have no effect, at the line that declares them.

An option without an effect is easily overlooked. Each option's own module defines what it means; this module
only knows when it means nothing.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, get_args

from ematix_flow.api.option_checks import check_choice
from ematix_flow.api.target import Target
from ematix_flow.errors import DeclarationError, did_you_mean
from ematix_flow.spec.location import SourceLocation
from ematix_flow.spec.pipelines import Catchup, TargetSpec
from ematix_flow.spec.streams import StreamTargetSpec

# the modes in which a target uses the option
MODES_USING = {
    "keys": ("merge", "scd2"),
    "compare_columns": ("merge", "scd2"),
    "update_columns": ("merge",),
}

_STREAM_MODES_USING = {**MODES_USING, "event_timestamp_column": ("merge", "scd2")}


def check_catchup(catchup: str, schedule: str | None, where: SourceLocation | None) -> None:
    check_choice("catchup", catchup, get_args(Catchup), where)
    if catchup != "last" and schedule is None:
        raise DeclarationError(
            "catchup= needs schedule=: it says which missed fire times are run later", where=where
        )


def check_matching_options(
    given: Mapping[str, Any], targets: Sequence[Any], where: SourceLocation | None
) -> None:
    """Refuse an option about matching rows that none of these targets uses."""
    for option, modes in MODES_USING.items():
        if given.get(option) is not None and not any(target.mode in modes for target in targets):
            have = ", ".join(sorted({repr(target.mode) for target in targets}))
            raise DeclarationError(
                f"{option}= works with mode={' and '.join(map(repr, modes))}, and the mode is {have}",
                where=where,
                next_step=f"leave {option}= out, or choose another mode=",
            )


def check_target_defaults(
    given: Mapping[str, Any],
    targets: Sequence[Target],
    specs: Sequence[TargetSpec],
    where: SourceLocation | None,
) -> None:
    """Refuse a default of the pipeline that every target replaces with its own value."""
    taking = list(specs)
    for option, value in given.items():
        if value is None:
            continue
        if targets:
            own = "connection" if option == "target_connection" else option
            taking = [s for t, s in zip(targets, specs, strict=True) if getattr(t, own) is None]
            if not taking:
                raise DeclarationError(
                    f"{option}= applies to targets without {own}=, and each of targets= has its own",
                    where=where,
                    next_step=f"leave {option}= out",
                )
        check_matching_options({option: value}, taking, where)
    for target, spec in zip(targets, specs, strict=False):
        check_matching_options({option: getattr(target, option) for option in MODES_USING}, [spec], where)


def check_stream_matching_options(
    targets: Sequence[Target],
    defaults: StreamTargetSpec,
    specs: Sequence[StreamTargetSpec],
    where: SourceLocation | None,
) -> None:
    """The same check for a stream, whose keys also become the primary key of a table given by name only."""
    for option, modes in _STREAM_MODES_USING.items():
        shared = getattr(defaults, option)
        taking = [s for t, s in zip(targets, specs, strict=True) if getattr(t, option) is None]
        if shared not in (None, ()) and not any(_uses_option(option, modes, spec) for spec in taking):
            raise _wrong_mode_error(option, modes, where)
        for target, spec in zip(targets, specs, strict=True):
            if getattr(target, option) is not None and not _uses_option(option, modes, spec):
                raise _wrong_mode_error(option, modes, target.where or where)
    for target, spec in zip(targets, specs, strict=True):
        if target.primary_key is not None and not _uses_option("keys", _STREAM_MODES_USING["keys"], spec):
            raise DeclarationError(
                "primary_key= is for a table given by name only; a declared table has pk()",
                where=target.where or where,
            )


def _uses_option(option: str, modes: Sequence[str], spec: StreamTargetSpec) -> bool:
    return spec.mode in modes or (option == "keys" and spec.table is None and spec.table_name is not None)


def _wrong_mode_error(option: str, modes: Sequence[str], where: SourceLocation | None) -> DeclarationError:
    return DeclarationError(
        f"{option}= works with mode={' and '.join(map(repr, modes))}; none of its targets has that mode",
        where=where,
        next_step=f"leave {option}= out, or choose another mode=",
    )


def check_column_map(
    column_map: Sequence[tuple[str, str]], specs: Sequence[TargetSpec], where: SourceLocation | None
) -> None:
    """Check that each name is a declared column, and that the column is read from the source."""
    if not column_map:
        return
    for name, source in column_map:
        if not isinstance(name, str) or not isinstance(source, str) or not source.strip():
            raise DeclarationError(
                f"column_map= takes {{declared column: source column}}, not {{{name!r}: {source!r}}}",
                where=where,
            )
    for spec in specs:
        if spec.table is None:
            raise DeclarationError(
                f"column_map= maps declared columns to columns of the source, and {spec.label} declares none",
                where=where,
                next_step="give the target a table=, or name the columns with AS in the source SQL",
            )
        for name, source in column_map:
            _check_mapped_column(name, source, spec, where)


def _check_mapped_column(name: str, source: str, spec: TargetSpec, where: SourceLocation | None) -> None:
    table = spec.table
    assert table is not None
    if name not in table.column_names:
        turned = f"{{{source!r}: {name!r}}}" if source in table.column_names else None
        raise DeclarationError(
            f"column_map= names {name!r}, which is not a column of {table.label}."
            f"{did_you_mean(name, table.column_names)}",
            where=where,
            next_step=f"the declared column comes first: column_map={turned}"
            if turned
            else "column_map= takes {declared column: source column}",
        )
    normalizers = table.column(name).normalizers
    if normalizers and normalizers[0].name == "derive":
        raise DeclarationError(
            f"column_map= and derive() both define where {name!r} comes from",
            where=where,
            next_step="keep one of them",
        )
