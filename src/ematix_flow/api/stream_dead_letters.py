"""Checks the options of a stream's dead letters and builds their spec. Refuses options without an effect."""

from __future__ import annotations

from ematix_flow.api import option_checks
from ematix_flow.api.stream_declaration import StreamOptions
from ematix_flow.errors import DeclarationError
from ematix_flow.spec.location import SourceLocation
from ematix_flow.spec.streams import DEAD_LETTER_STORES, ERROR_POLICIES, DeadLetterSpec, ErrorPolicy


def resolve_error_policy(options: StreamOptions) -> ErrorPolicy:
    """What happens to a message that cannot be loaded. A topic or a table for dead letters means ``dlq``."""
    if options.transform_on_error is not None:
        return options.transform_on_error
    has_place = options.dead_letter_topic is not None or options.dead_letter_table is not None
    return "dlq" if has_place else "fail"


def build_dead_letters(options: StreamOptions, where: SourceLocation | None) -> DeadLetterSpec:
    store, topic = options.dlq_store, options.dead_letter_topic
    option_checks.check_choice("transform_on_error", options.transform_on_error, ERROR_POLICIES, where)
    option_checks.check_choice("dlq_store", store, DEAD_LETTER_STORES, where)
    option_checks.check_whole_number("dlq_max_attempts", options.dlq_max_attempts, 1, where)
    if store == "topic" and topic is None:
        raise DeclarationError("dlq_store='topic' needs dead_letter_topic=", where=where)
    _check_options_of_policy(options, where)
    if store == "broker":
        _check_broker_store(options, where)
    if topic is not None and store == "table":
        raise DeclarationError(
            "dead_letter_topic= is not used with dlq_store='table': it keeps dead letters in a table only",
            where=where,
            next_step="leave dlq_store= out to keep letters in a table and send them to the topic, or leave "
            "dead_letter_topic= out",
        )
    attempts = 3 if options.dlq_max_attempts is None else options.dlq_max_attempts
    return DeadLetterSpec(
        store or "auto", topic, options.dead_letter_table, options.dead_letter_connection, attempts
    )


def _check_options_of_policy(options: StreamOptions, where: SourceLocation | None) -> None:
    """Refuse what has no effect on a stream that writes no dead letters.

    A stream that declares ``fail`` or ``drop`` may still say where its letters are: ``flow dlq`` shows and
    replays those that it wrote before.
    """
    policy = resolve_error_policy(options)
    if policy == "dlq":
        return
    if options.transform_on_error is not None:
        unused = {
            "dead_letter_topic=": options.dead_letter_topic is not None,
            f"dlq_store={options.dlq_store!r}": options.dlq_store in ("topic", "broker"),
        }
        why = f"is not used with transform_on_error={policy!r}: it writes no dead letters"
    else:
        unused = {
            "dead_letter_connection=": options.dead_letter_connection is not None,
            f"dlq_store={options.dlq_store!r}": options.dlq_store not in (None, "auto"),
            "dlq_max_attempts=": options.dlq_max_attempts is not None,
        }
        why = "is not used: without transform_on_error= a message that cannot be loaded stops the stream"
    for option, is_given in unused.items():
        if is_given:
            raise DeclarationError(
                f"{option} {why}",
                where=where,
                next_step=f"set transform_on_error='dlq' to write dead letters, or leave {option} out",
            )


def _check_broker_store(options: StreamOptions, where: SourceLocation | None) -> None:
    for option in ("dead_letter_topic", "dead_letter_table", "dead_letter_connection", "dlq_max_attempts"):
        if getattr(options, option) is not None:
            raise DeclarationError(
                f"{option}= is not used with dlq_store='broker': the broker keeps the messages",
                where=where,
                next_step=f"leave {option}= out, or dlq_store=",
            )
