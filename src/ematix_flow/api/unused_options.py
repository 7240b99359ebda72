"""Options that a pipeline gives and that nothing in it would use: each is refused where it is declared.

Nobody notices an option that does nothing. What an option means is told by its owner; here is when it means
nothing.
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

# the modes in which a target looks at the option
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
            "catchup= says which fires of schedule= run after all, and there is none", where=where
        )


def check_matching_options(
    given: Mapping[str, Any], targets: Sequence[Any], where: SourceLocation | None
) -> None:
    """How rows are matched, given for these targets: one of them at least must match rows."""
    for option, modes in MODES_USING.items():
        if given.get(option) is not None and not any(target.mode in modes for target in targets):
            have = ", ".join(sorted({repr(target.mode) for target in targets}))
            raise DeclarationError(
                f"{option}= is for mode={' and '.join(map(repr, modes))}, and the mode is {have}",
                where=where,
                next_step=f"leave {option}= out, or choose another mode=",
            )


def check_target_defaults(
    given: Mapping[str, Any],
    targets: Sequence[Target],
    specs: Sequence[TargetSpec],
    where: SourceLocation | None,
) -> None:
    """What a pipeline says for its targets is used by one that does not say it itself."""
    taking = list(specs)
    for option, value in given.items():
        if value is None:
            continue
        if targets:
            own = "connection" if option == "target_connection" else option
            taking = [s for t, s in zip(targets, specs, strict=True) if getattr(t, own) is None]
            if not taking:
                raise DeclarationError(
                    f"{option}= is for targets without {own}=, and each of targets= has its own",
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
    """The same for a stream, whose keys also make the primary key of a table that is only named."""
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
                "primary_key= is for a table that is only named; a declared table has pk()",
                where=target.where or where,
            )


def _uses_option(option: str, modes: Sequence[str], spec: StreamTargetSpec) -> bool:
    return spec.mode in modes or (option == "keys" and spec.table is None and spec.table_name is not None)


def _wrong_mode_error(option: str, modes: Sequence[str], where: SourceLocation | None) -> DeclarationError:
    return DeclarationError(
        f"{option}= is for mode={' and '.join(map(repr, modes))}, and no target that it is for has it",
        where=where,
        next_step=f"leave {option}= out, or choose another mode=",
    )


def check_column_map(
    column_map: Sequence[tuple[str, str]], specs: Sequence[TargetSpec], where: SourceLocation | None
) -> None:
    """Each name is a declared column that is read from the source."""
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
                f"column_map= says from which column of the source a declared one comes, and {spec.label} "
                "declares none",
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
            f"column_map= names {name!r}, which is no column of {table.label}."
            f"{did_you_mean(name, table.column_names)}",
            where=where,
            next_step=f"the declared column comes first: column_map={turned}"
            if turned
            else "column_map= takes {declared column: source column}",
        )
    normalizers = table.column(name).normalizers
    if normalizers and normalizers[0].name == "derive":
        raise DeclarationError(
            f"column_map= says where {name!r} comes from, and so does its derive()",
            where=where,
            next_step="give one of them",
        )
