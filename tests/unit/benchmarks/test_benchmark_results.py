"""What follows from measurements: best, median, ratios, order, and their way to disk and to the page."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks.publish import BEGIN, END, publish, with_results
from benchmarks.results import FOLDER as SAVED
from benchmarks.results import Result, Run, newest, ratio, save, standing, standings
from benchmarks.tables import columns, markdown_table, remarks, rows


def result(*runs: Run, case: str = "sqlite-duckdb", date: str = "2026-01-02T03:04:05+00:00") -> Result:
    machine = {"cores": 2, "processor": "A", "memory_bytes": 2**34, "system": "Linux", "load_average": 0.1}
    return Result(
        "copy", case, "SQLite → DuckDB", date, 1000, 900.0, machine, {"python": "3.11"}, "abc", runs
    )


def run(name: str, number: int, load: float) -> Run:
    return Run(name, number, 1.0, load, load + 1.5, load / 2, 2**20)


FLOW = [run("flow", n, load) for n, load in enumerate([4.0, 2.0, 3.0], 1)]
DRIVER = [run("driver", n, load) for n, load in enumerate([1.0, 1.5, 5.0], 1)]


def test_best_and_median_are_over_all_rounds() -> None:
    found = standing(result(*FLOW), "flow")
    assert (found.runs, found.best, found.median, found.total, found.again) == (3, 2.0, 3.0, 4.5, 1.0)


def test_a_ratio_compares_the_best_times() -> None:
    measured = result(*FLOW, *DRIVER)
    flow, driver = standing(measured, "flow"), standing(measured, "driver")
    assert (ratio(flow, driver), ratio(driver, flow), ratio(flow, flow)) == (2.0, 0.5, 1.0)


def test_one_wrong_round_disqualifies_all_of_them() -> None:
    wrong = Run("flow", 3, 1.0, 0.1, 1.1, problem="wrong result: 9 rows arrived of 1,000")
    found = standing(result(*FLOW[:2], wrong), "flow")
    assert (found.best, found.problem) == (None, "wrong result: 9 rows arrived of 1,000")


def test_the_fastest_comes_first_and_who_has_no_time_last() -> None:
    stopped = Run("jdbc", 1, over_limit=True)
    failed = Run("jdbc-tuned", 1, problem="failed: no")
    names = [s.contestant for s in standings(result(failed, stopped, *FLOW, *DRIVER))]
    assert names == ["driver", "flow", "jdbc", "jdbc-tuned"]


def test_a_loss_is_shown_like_a_win() -> None:
    table = rows(result(*FLOW, *DRIVER))
    assert table[0][:5] == ["drivers alone", "1.00", "1.50", "0.50", "1.00"]
    assert table[1][:6] == ["ematix-flow", "2.00", "3.00", "1.00", "2.00", "500"]


@pytest.mark.parametrize("measured", newest(SAVED), ids=lambda measured: measured.case)
def test_a_table_has_a_heading_for_each_of_its_cells(measured: Result) -> None:
    assert {len(row) for row in rows(measured)} == {len(columns(measured))}


def test_changes_in_a_lake_are_compared_with_delta_rs_and_those_of_a_database_with_sql() -> None:
    by_hand = {"delta-merge-1-into-9": ("delta-rs", "× delta-rs"), "merge-1-into-9": ("sql", "× SQL")}
    for case, (name, header) in by_hand.items():
        measured = replace(result(*FLOW, run(name, 1, 1.0), case=case), benchmark="changes")
        assert columns(measured)[4] == header
        assert [row[4] for row in rows(measured)] == ["1.00", "2.00"]


def test_who_was_stopped_or_disqualified_says_why() -> None:
    measured = result(
        *FLOW, Run("jdbc", 1, over_limit=True), Run("jdbc-tuned", 1, problem="failed: no table")
    )
    assert rows(measured)[1][:4] == ["Spark JDBC, as written", "over 900", "", "over 450.0"]
    assert rows(measured)[2][:2] == ["Spark JDBC, tuned", "disqualified"]
    assert remarks(measured) == [
        "Spark JDBC, as written: stopped after 900 s and not tried again",
        "Spark JDBC, tuned: disqualified, failed: no table",
    ]


def test_a_contestant_with_fewer_rounds_than_the_others_says_so() -> None:
    measured = result(*FLOW, Run("jdbc", 1, 1.0, 400.0, 401.0))
    assert remarks(measured) == ["Spark JDBC, as written: 1 round only, as it takes so long"]


def test_a_result_survives_the_way_through_json() -> None:
    noted = Run(
        "flow", 1, 1.0, 2.0, 3.0, 1.5, 4, notes=("o_orderdate arrived as TEXT",), details={"path": "copy"}
    )
    measured = result(noted, Run("jdbc", 1, over_limit=True))
    assert Result.from_json(json.loads(json.dumps(measured.to_json()))) == measured


def test_the_newest_result_of_each_case_is_taken(tmp_path: Path) -> None:
    save(result(*DRIVER, date="2026-01-02T00:00:00+00:00"), tmp_path)
    save(result(*FLOW, date="2026-02-01T00:00:00+00:00"), tmp_path)
    save(result(*DRIVER, case="postgres-parquet"), tmp_path)
    assert [(r.case, r.contestants) for r in newest(tmp_path)] == [
        ("postgres-parquet", ("driver",)),
        ("sqlite-duckdb", ("flow",)),
    ]


def test_publishing_replaces_what_stood_between_the_marks_and_nothing_else(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text(f"before\n\n{BEGIN}\nold figures\n{END}\n\nafter\n")
    save(result(*FLOW, *DRIVER), tmp_path)
    assert publish(page, tmp_path) == 1
    text = page.read_text()
    assert text.startswith("before\n")
    assert text.endswith("after\n")
    assert "old figures" not in text
    assert "### SQLite → DuckDB, 1,000 rows" in text
    assert "| ematix-flow | 2.00 | 3.00 |" in text
    assert "commit abc, 3 rounds" in text


def test_publishing_the_same_results_again_changes_nothing() -> None:
    once = with_results(f"{BEGIN}{END}", [result(*FLOW)])
    assert with_results(once, [result(*FLOW)]) == once


def test_a_page_without_the_marks_is_left_alone() -> None:
    with pytest.raises(ValueError, match="no place for results"):
        with_results("only words", [])


def test_a_bar_in_a_cell_does_not_end_it() -> None:
    assert markdown_table(["a", "b"], [["x|y", "1"]]) == "| a | b |\n| --- | ---: |\n| x\\|y | 1 |"
