"""Translates Spark's errors into ours: the cause in one line, no Java stack trace, the path of the log.

Reading a cause out of a text is `root_cause`; `translate_spark_error` chooses the error class and adds the
next step.
"""

from __future__ import annotations

import re
from typing import Any

from ematix_flow import errors
from ematix_flow.backends.spark_sql.row_refusals import find_refusal
from ematix_flow.engine.jvm.cache_folder import spark_log
from ematix_flow.engine.jvm.java_process import last_process
from ematix_flow.engine.spark.file_errors import file_error
from ematix_flow.engine.spark.interrupts import was_interrupted
from ematix_flow.strategies.functions.base import find_rejection

_TRACEBACK = "Traceback (most recent call last):"
_CAUSED_BY = re.compile(r"^Caused by: (.+)$", re.MULTILINE)
_LOST_TASK = re.compile(r"most recent failure: Lost task [^\n]*?\): ((?:[\w$]+\.)+[\w$]+(?:: [^\n]*)?)")
_JAVA_CLASS = re.compile(r"^(?:[a-z_][\w$]*\.)+([A-Z][\w$]*)(?:: (.*))?$", re.DOTALL)
_SQLSTATE = re.compile(r";? *SQLSTATE: \w{5};?")
_CALLING = re.compile(r"^An error occurred while calling [^\n]*\n: ")
_BYPASS = re.compile(r' If necessary set "spark\.[\w.]+" to "\w+" to bypass this error\.')
_OURS = re.compile(r"^ematix_flow\.errors\.(\w+): (.*)$", re.DOTALL)
_CONDITION = re.compile(r"\[([A-Z][A-Z0-9_]+(?:\.[A-Z0-9_]+)*)\]")

# Wrappers whose name adds nothing to the message.
_PLAIN = frozenset(
    {"SparkException", "SparkRuntimeException", "AnalysisException", "ParseException", "RuntimeException"}
)
_ROW_CONDITIONS = (
    "CAST_",
    "NUMERIC_VALUE_OUT_OF_RANGE",
    "NOT_NULL_ASSERT_VIOLATION",
    "EXCEED_LIMIT_LENGTH",
    "DELTA_VIOLATE_CONSTRAINT",
    "DELTA_NOT_NULL_CONSTRAINT_VIOLATED",
    "DELTA_EXCEED_CHAR_VARCHAR_LIMIT",
)
_ROW_VALUES = re.compile(r"violated by row with values:\n((?: - [^\n]*\n?)+)")  # Delta: a line per column
_ROW_STATE = re.compile(r"SQLSTATE: (?:22|23|P0001)")  # values, constraints, and errors raised by SQL
_GATEWAY_GONE = (
    "Answer from Java side is empty",
    "An error occurred while trying to connect to the Java server",
    "Error while sending or receiving",
    "Java gateway process exited",
)
_HINTS = (
    (
        "OutOfMemoryError",
        'Spark ran out of memory: give it more with  memory = "8g"  under [engine], or let it hold less at'
        " once with a higher  shuffle_partitions",
    ),
    (
        "No space left on device",
        "the disk is full: free some space, or set SPARK_LOCAL_DIRS to a larger disk for Spark's own files",
    ),
    (
        "Python worker exited unexpectedly",
        "a Python worker of Spark was killed or crashed, most often by lack of memory: the log's end has its"
        " last words",
    ),
    (
        "was killed",
        'the system kills a process that takes too much memory: give Spark less with  memory = "2g"  under'
        " [engine]",
    ),
)


def translate_spark_error(error: BaseException, *, what: str, source: bool = False) -> errors.FlowError:
    """The error of a failed ``what``. With ``source`` a wrong query is an error of the source, not of Spark.

    An interrupt is raised again, also if another error hides it: PySpark may fail while it cleans up after
    the interrupt.
    """
    if isinstance(error, errors.FlowError):
        return error
    if isinstance(error, KeyboardInterrupt):
        raise error
    if was_interrupted(error):
        raise KeyboardInterrupt from error
    if _is_gateway_gone(error):
        return _java_gone_error(what)
    if not _is_spark_error(error):
        return errors.LoadError(f"{what} failed: {_python_line(error)}")
    text = _full_text(error)
    refused = find_rejection(text)
    if refused is not None:
        hint = "fix it in the source, filter it in the SQL, or give the marker another on_failure="
        return errors.RowRejected(refused, next_step=hint)
    ours = _own_error(text) or find_refusal(text)
    if ours is not None:
        return ours
    cause = _with_row_values(root_cause(text), text)
    of_file = file_error(text, cause)
    if of_file is not None:
        return of_file
    kind = _error_class(error, text, cause, source)
    return kind(f"{what} failed: {cause}", next_step=_next_step(text))


def root_cause(text: str) -> str:
    """The one line of an error's text (message, then Java stack trace) that says what went wrong."""
    python = _python_error(text)
    if python is not None:
        return python.splitlines()[0]
    lost = _LOST_TASK.search(text)
    lines = [*reversed(_CAUSED_BY.findall(text)), *([lost[1]] if lost else []), _first_line(text)]
    causes = [message for message in map(_exception_message, lines) if message]
    telling = [cause for cause in causes if any(sign in cause for sign, _ in _HINTS)]
    return next(iter(telling or causes), None) or _first_line(text) or "no reason given"


def _with_row_values(cause: str, text: str) -> str:
    """The cause with the values of the row that violates a constraint, from the lines after it."""
    found = _ROW_VALUES.search(text) if cause.endswith("values:") else None
    if found is None:
        return cause
    return f"{cause} {', '.join(line[3:].strip() for line in found[1].splitlines())}"


def _first_line(text: str) -> str:
    return next((line.strip() for line in text.splitlines() if line.strip()), "")


def _exception_message(line: str) -> str:
    """``SomeException: message`` without packages; empty without a message."""
    line = _BYPASS.sub("", _SQLSTATE.sub("", line)).strip()
    match = _JAVA_CLASS.match(line)
    if match is None:
        return line.rstrip(";").strip()
    name, message = match[1], (match[2] or "").strip().rstrip(";")
    if not message or message == "null":
        return ""
    return message if name in _PLAIN else f"{name}: {message}"


def _python_error(text: str) -> str | None:
    """The last lines of a worker's traceback: the exception and its message."""
    if _TRACEBACK not in text:
        return None
    lines = text.rsplit(_TRACEBACK, 1)[1].splitlines()[1:]
    message_lines: list[str] = []
    for line in lines:
        if not message_lines and (not line.strip() or line[0].isspace()):
            continue  # still in the frames
        if line.startswith("\tat ") or (message_lines and not line.strip()):
            break
        message_lines.append(line)
    return "\n".join(message_lines) or None


def _own_error(text: str) -> errors.FlowError | None:
    """The error of this package that a worker raised, with its parts."""
    python = _python_error(text)
    match = _OURS.match(python) if python else None
    if match is None:
        return None
    kind: Any = getattr(errors, match[1], errors.LoadError)
    what, parts = match[2], {}
    for name, label in (("next_step", "next:"), ("state", "state:"), ("where", "where:")):
        what, found, rest = what.partition(f"\n  {label}")
        parts[name] = rest.strip() if found else None
    revived: errors.FlowError = kind(what.strip(), state=parts["state"], next_step=parts["next_step"])
    return revived


def _error_class(error: BaseException, text: str, cause: str, source: bool) -> type[errors.FlowError]:
    if source and _has_class_named(error, "AnalysisException"):
        return errors.SourceFailed
    condition = _CONDITION.search(cause)
    if (condition and condition[1].startswith(_ROW_CONDITIONS)) or _ROW_STATE.search(text):
        return errors.RowRejected
    return errors.SparkFailed


def _next_step(text: str) -> str:
    last = last_process()
    log = f"Spark's own log is {last.log if last else spark_log()}"
    for sign, hint in _HINTS:
        if sign in text:
            return f"{hint}. {log}"
    return log


def _java_gone_error(what: str) -> errors.FlowError:
    last = last_process()
    cause = last.describe_exit() if last else "Spark's Java process ended"
    return errors.SparkFailed(f"{what} failed: {cause}", next_step=_next_step(cause))


def _full_text(error: BaseException) -> str:
    """Message and Java stack trace, without a call to a Java process that may have ended."""
    description = getattr(error, "_desc", None)
    if isinstance(description, str):
        return f"{description}\n{getattr(error, '_stackTrace', '') or ''}"
    java = getattr(error, "java_exception", None)
    if java is not None:
        try:
            return _CALLING.sub("", str(error))
        except Exception as lost:  # Py4J calls the Java process for the trace
            return f"{type(error).__name__} ({type(lost).__name__} while reading it)"
    server = getattr(error, "_stacktrace", None)  # Spark Connect
    return f"{error}\n{server}" if isinstance(server, str) else str(error)


def _is_gateway_gone(error: BaseException) -> bool:
    if isinstance(error, ConnectionError):
        return _came_through_py4j(error)
    if _has_class_named(error, "Py4JNetworkError"):
        return True
    if not _is_spark_error(error) or getattr(error, "java_exception", None) is not None:
        return False
    if any(sign in _full_text(error) for sign in _GATEWAY_GONE):
        return True
    last = last_process()
    return _has_class_named(error, "Py4JError") and last is not None and last.has_ended(within=0.5)


def _came_through_py4j(error: BaseException) -> bool:
    """Whether the lost connection was the one to Java; that of a database looks the same."""
    frames = error.__traceback__
    while frames is not None:
        if frames.tb_frame.f_globals.get("__name__", "").startswith("py4j."):
            return True
        frames = frames.tb_next
    return False


def _is_spark_error(error: BaseException) -> bool:
    return any(kind.__module__.split(".")[0] in ("pyspark", "py4j") for kind in type(error).__mro__)


def _has_class_named(error: BaseException, name: str) -> bool:
    """Compares by name, so that nothing imports Spark only to classify an error."""
    return any(kind.__name__ == name for kind in type(error).__mro__)


def _python_line(error: BaseException) -> str:
    message = _first_line(str(error))
    return f"{type(error).__name__}: {message}" if message else type(error).__name__
