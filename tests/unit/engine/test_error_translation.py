"""Causes found in Spark's errors, with real texts of Spark."""

from __future__ import annotations

import pytest
from py4j.protocol import Py4JNetworkError

from ematix_flow.engine.spark.error_translation import root_cause, translate_spark_error
from ematix_flow.errors import (
    LoadError,
    RowRejected,
    SchemaMismatch,
    SourceFailed,
    SparkFailed,
)

STACK = (
    "\tat org.apache.spark.scheduler.Task.run(Task.scala:147)\n\tat java.lang.Thread.run(Thread.java:840)\n"
)
LOST = (
    "org.apache.spark.SparkException: Job aborted due to stage failure: Task 0 in stage 2.0 failed 1 times,"
    " most recent failure: Lost task 0.0 in stage 2.0 (TID 4) (127.0.0.1 executor driver): "
)
WORKER = (
    (
        "\n  An exception was thrown from the Python worker. Please see the stack trace below.\n"
        "Traceback (most recent call last):\n"
        '  File "jobs.py", line 15, in rows\n'
        "    raise ValueError(text)\n"
        "    ^^^^^^^^^^^^^^^^^^^^^^\n"
        "{error}\n\n"
    )
    + LOST
    + "org.apache.spark.api.python.PythonException: Traceback (most recent call last):\n"
    + ('  File "jobs.py", line 15, in rows\n    raise ValueError(text)\n{error}\n\n')
    + STACK
)

CAUSES = {
    "a wrong column": (
        "[UNRESOLVED_COLUMN.WITH_SUGGESTION] A column with name `x` cannot be resolved. Did you mean one of"
        " the following? [`id`]. SQLSTATE: 42703; line 1 pos 7;\n'Project ['x]\n+- Range (0, 3)\n\n"
        "org.apache.spark.sql.AnalysisException: [UNRESOLVED_COLUMN.WITH_SUGGESTION] again\n" + STACK,
        "[UNRESOLVED_COLUMN.WITH_SUGGESTION] A column with name `x` cannot be resolved. Did you mean one of"
        " the following? [`id`]. line 1 pos 7",
    ),
    "a syntax error": (
        "\n[PARSE_SYNTAX_ERROR] Syntax error at or near 'x': extra input. SQLSTATE: 42601 (line 1, pos 14)\n"
        "\n== SQL ==\nselect * form x\n--------------^^^\n",
        "[PARSE_SYNTAX_ERROR] Syntax error at or near 'x': extra input. (line 1, pos 14)",
    ),
    "advice that would break the promise is left out": (
        "[DIVIDE_BY_ZERO] Division by zero. Use `try_divide` instead. If necessary set"
        ' "spark.sql.ansi.enabled" to "false" to bypass this error. SQLSTATE: 22012\n== SQL ==\nselect 1/0\n',
        "[DIVIDE_BY_ZERO] Division by zero. Use `try_divide` instead.",
    ),
    "a Python worker's error": (
        WORKER.format(error="ValueError: bad value 'x'\nwith a second line"),
        "ValueError: bad value 'x'",
    ),
    "an error without words": (WORKER.format(error="KeyError"), "KeyError"),
    "the deepest cause": (
        LOST
        + "org.apache.spark.SparkException: Task failed while writing rows.\n"
        + STACK
        + "Caused by: org.apache.spark.SparkException: wrapped\n"
        + STACK
        + "Caused by: java.io.IOException: Mkdirs failed to create file:/x\n"
        + STACK
        + "\t... 12 more\n",
        "IOException: Mkdirs failed to create file:/x",
    ),
    "a cause that says nothing is passed over": (
        "org.apache.spark.SparkException: told here\n"
        + STACK
        + "Caused by: java.lang.NullPointerException\n",
        "told here",
    ),
    "out of memory above a shallower cause": (
        "java.lang.OutOfMemoryError: Java heap space\n" + STACK,
        "OutOfMemoryError: Java heap space",
    ),
    "a crashed worker, not the socket that broke": (
        LOST
        + "org.apache.spark.SparkException: Python worker exited unexpectedly (crashed): \n"
        + STACK
        + "Caused by: java.net.SocketException: Connection reset\n"
        + STACK,
        "Python worker exited unexpectedly (crashed):",
    ),
    "nothing": ("", "no reason given"),
}


@pytest.mark.parametrize("case", CAUSES)
def test_the_cause_is_one_line_without_java(case: str) -> None:
    text, cause = CAUSES[case]
    assert root_cause(text) == cause


def sparks_error(text: str, name: str = "PySparkException") -> Exception:
    """An error of a class as PySpark has it, with the fields that its captured errors carry."""
    base = type("PySparkException", (Exception,), {"__module__": "pyspark.errors.exceptions.base"})
    error: Exception = type(name, (base,), {"__module__": "pyspark.errors.exceptions.captured"})(text)
    error._desc, error._stackTrace = text, STACK  # type: ignore[attr-defined]
    return error


def test_a_failure_names_what_was_done_and_where_the_log_is() -> None:
    told = translate_spark_error(
        sparks_error("[SOME_ERROR] It broke. SQLSTATE: 42000"), what="loading orders"
    )
    assert isinstance(told, SparkFailed)
    assert told.what == "loading orders failed: [SOME_ERROR] It broke."
    assert "spark-" in (told.next_step or "")
    assert "\tat " not in str(told)


def test_a_wrong_query_is_the_sources_fault_only_when_it_is_the_sources_query() -> None:
    error = sparks_error("[TABLE_OR_VIEW_NOT_FOUND] no `x`", "AnalysisException")
    assert isinstance(translate_spark_error(error, what="reading", source=True), SourceFailed)
    assert isinstance(translate_spark_error(error, what="reading"), SparkFailed)


@pytest.mark.parametrize(
    "condition",
    [
        "CAST_INVALID_INPUT",
        "CAST_OVERFLOW",
        "NUMERIC_VALUE_OUT_OF_RANGE",
        "DELTA_VIOLATE_CONSTRAINT_WITH_VALUES",
        "DELTA_NOT_NULL_CONSTRAINT_VIOLATED",
        "DELTA_EXCEED_CHAR_VARCHAR_LIMIT",
    ],
)
def test_a_value_that_does_not_fit_rejects_the_row(condition: str) -> None:
    assert isinstance(
        translate_spark_error(sparks_error(f"[{condition}] The value 'a'"), what="loading"), RowRejected
    )


def test_a_broken_constraint_of_delta_names_the_values_of_the_row() -> None:
    said = (
        "org.apache.spark.sql.delta.schema.DeltaInvariantViolationException: "
        "[DELTA_VIOLATE_CONSTRAINT_WITH_VALUES] CHECK constraint paid (amount > fee) violated by row with"
        f" values:\n - amount : 1\n - fee : 2\n{STACK}"
    )
    error = translate_spark_error(sparks_error(LOST + said), what="loading")
    assert isinstance(error, RowRejected)
    assert error.what.endswith("violated by row with values: amount : 1, fee : 2")


@pytest.mark.parametrize(
    ("text", "hint"),
    [
        ("java.lang.OutOfMemoryError: Java heap space", "memory ="),
        ("java.io.IOException: No space left on device", "SPARK_LOCAL_DIRS"),
        (
            LOST + "org.apache.spark.SparkException: Python worker exited unexpectedly (crashed): ",
            "Python worker",
        ),
    ],
)
def test_memory_disk_and_crashes_get_a_hint(text: str, hint: str) -> None:
    assert hint in (translate_spark_error(sparks_error(text), what="loading").next_step or "")


def test_our_own_error_from_a_worker_comes_back_as_it_was() -> None:
    original = SchemaMismatch("column 'a' is missing", state="the target is as before", next_step="add it")
    told = translate_spark_error(
        sparks_error(WORKER.format(error=f"ematix_flow.errors.SchemaMismatch: {original}")), what="x"
    )
    assert isinstance(told, SchemaMismatch)
    assert (told.what, told.state, told.next_step) == (original.what, original.state, original.next_step)


def test_an_error_of_ours_is_left_alone() -> None:
    error = RowRejected("no")
    assert translate_spark_error(error, what="loading") is error


def test_secrets_do_not_survive() -> None:
    told = translate_spark_error(
        sparks_error("cannot reach postgresql://me:hunter2@host/db password=hunter2"), what="x"
    )
    assert "hunter2" not in str(told)


def test_an_error_that_is_not_sparks_keeps_its_name() -> None:
    told = translate_spark_error(ValueError("bad\nsecond"), what="loading")
    assert type(told) is LoadError
    assert told.what == "loading failed: ValueError: bad"


def test_a_databases_lost_connection_is_not_blamed_on_java() -> None:
    try:
        raise ConnectionRefusedError(111, "Connection refused")
    except ConnectionRefusedError as error:
        assert type(translate_spark_error(error, what="loading")) is LoadError


def test_ctrl_c_stays_an_interrupt_also_when_cleaning_up_behind_it_failed() -> None:
    with pytest.raises(KeyboardInterrupt):
        translate_spark_error(KeyboardInterrupt(), what="loading")
    try:
        try:
            raise KeyboardInterrupt
        finally:
            raise Py4JNetworkError("Answer from Java side is empty")  # PySpark's, in SCCallSiteSync
    except Py4JNetworkError as lost:
        with pytest.raises(KeyboardInterrupt):
            translate_spark_error(lost, what="loading")


def test_a_connection_lost_in_py4j_means_that_java_is_gone() -> None:
    namespace = {"__name__": "py4j.clientserver"}
    exec("def send():\n    raise ConnectionRefusedError(111, 'Connection refused')", namespace)
    try:
        namespace["send"]()  # type: ignore[operator]
    except ConnectionRefusedError as error:
        told = translate_spark_error(error, what="loading")
    assert isinstance(told, SparkFailed)
    assert "Java process" in told.what
