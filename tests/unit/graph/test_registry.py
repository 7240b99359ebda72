"""Names, dependencies and cycles, as a user's module meets them."""

from __future__ import annotations

import textwrap
from pathlib import Path

import pytest

from ematix_flow import Annotated, BigInt, ManagedTable, ematix, pk
from ematix_flow.errors import (
    DeclarationError,
    DependencyCycle,
    DuplicateName,
    ModuleLoadError,
    UnknownName,
    UsageError,
)
from ematix_flow.graph.dependency_order import find_cycle, topological_order
from ematix_flow.graph.module_loading import load_module
from ematix_flow.graph.registry import Registry, current_registry, use_registry


class Events(ManagedTable):
    __schema__ = "analytics"
    __tablename__ = "events"
    event_id: Annotated[BigInt, pk()]


def declare(name: str, *depends_on: str) -> None:
    @ematix.pipeline(target=Events, target_connection="warehouse", name=name, depends_on=depends_on)
    def load() -> str:
        return "SELECT 1 AS event_id"


def test_the_nearest_upstream_that_loads_into_a_connection_is_found() -> None:
    with use_registry(Registry()) as registry:
        declare("layer0_a")
        declare("layer0_b")
        for layer in range(1, 40):  # each path would be two to the power of 39 of them
            for name in "ab":
                declare(f"layer{layer}_{name}", f"layer{layer - 1}_a", f"layer{layer - 1}_b")
        assert registry.upstream_writer("layer39_a", "elsewhere") is None
        assert registry.upstream_writer("layer39_a", "warehouse") == "layer38_a"
        assert registry.upstream_writer("unknown", "warehouse") is None


@pytest.mark.parametrize("kind", ["pipeline", "workflow"])
def test_a_name_that_no_store_of_slots_could_hold_is_refused(kind: str) -> None:
    def declare_it(name: str) -> None:
        declare(name) if kind == "pipeline" else ematix.workflow(name, jobs=["a"], schedule="@daily")

    declare_it("n" * 160)
    with pytest.raises(DeclarationError, match=f"{kind} 'n+'… has 161 characters; at most 160 are allowed"):
        declare_it("n" * 161)


@pytest.mark.parametrize(
    ("name", "told"),
    [
        ("a\nb", "cannot be printed"),
        ("a\x1b[31m", "cannot be printed"),
        ("workflow:w", "begins with workflow:"),
        ("freshness:orders", "begins with freshness:"),
        ("tag:core", "begins with tag:"),
    ],
)
def test_a_name_that_means_something_else_to_a_log_or_a_terminal_is_refused(name: str, told: str) -> None:
    with pytest.raises(DeclarationError, match=told):
        declare(name)


def test_a_pipeline_is_found_by_its_name() -> None:
    declare("a")
    assert current_registry().pipeline("a").spec.name == "a"


def test_two_registries_do_not_mix() -> None:
    declare("a")
    with use_registry(Registry()) as other:
        declare("a")
        assert list(other.pipelines) == ["a"]
    assert list(current_registry().pipelines) == ["a"]


def test_an_unknown_pipeline_gets_a_suggestion() -> None:
    declare("ingest_events")
    with pytest.raises(UnknownName, match="Did you mean 'ingest_events'"):
        current_registry().pipeline("ingest_event")


def test_two_pipelines_of_one_name_are_refused_at_the_second_line() -> None:
    declare("a")
    with pytest.raises(DuplicateName, match="declared twice") as raised:
        ematix.pipeline(target=Events, name="a")(lambda: "SELECT 1")
    assert raised.value.where is not None
    assert raised.value.where.file == __file__


def test_a_circle_is_refused_when_it_closes() -> None:
    declare("a", "b")
    declare("b", "c")
    with pytest.raises(DependencyCycle, match=r"a → b → c → a|b → c → a → b|c → a → b → c"):
        declare("c", "a")


def test_a_pipeline_cannot_depend_on_itself() -> None:
    with pytest.raises(DependencyCycle):
        declare("a", "a")


def test_an_undeclared_upstream_is_found_when_the_module_is_complete() -> None:
    declare("a", "ingest")
    declare("ingests")
    with pytest.raises(UnknownName, match="Did you mean 'ingests'"):
        current_registry().check()


def test_the_order_puts_upstreams_first_and_keeps_the_declared_order_otherwise() -> None:
    declare("report", "orders", "customers")
    declare("orders")
    declare("customers")
    assert current_registry().dependency_order() == ["orders", "customers", "report"]
    assert current_registry().dependency_order(["report", "orders"]) == ["orders", "report"]


def test_a_transform_reference_must_name_something() -> None:
    @ematix.pipeline(target=Events, transforms_post=[ematix.transform_ref("update_mart")])
    def load() -> str:
        return "SELECT 1"

    with pytest.raises(UnknownName, match="update_mart"):
        current_registry().check()


def test_a_workflow_must_run_declared_pipelines() -> None:
    declare("orders")
    ematix.workflow("nightly", jobs=["orders", "customer"], schedule="0 2 * * *")
    with pytest.raises(UnknownName, match="workflow 'nightly' runs pipeline 'customer'"):
        current_registry().check()


def test_a_workflow_cannot_wait_for_something_undeclared() -> None:
    declare("orders")
    ematix.workflow("nightly", jobs=["orders"], triggered_by=["order"])
    with pytest.raises(UnknownName, match=r"waits for pipeline 'order'.*Did you mean 'orders'"):
        current_registry().check()


def test_of_several_mistakes_in_a_workflow_the_first_argument_is_reported() -> None:
    declare("orders")
    with pytest.raises(DeclarationError, match="triggered_by= takes names"):
        ematix.workflow("nightly", jobs=["orders"], triggered_by=5, schedule="never")
    ematix.workflow("nightly", jobs=["ordrs"], triggered_by="order")
    with pytest.raises(UnknownName, match="workflow 'nightly' runs pipeline 'ordrs'"):
        current_registry().check()


def test_workflows_that_start_each_other_in_a_circle_are_refused() -> None:
    declare("orders")
    declare("items")
    ematix.workflow("first", jobs=["orders"], triggered_by="second")
    ematix.workflow("second", jobs=["items"], triggered_by="orders")
    with pytest.raises(DependencyCycle, match="start each other in a cycle") as raised:
        current_registry().check()
    assert raised.value.where is not None and raised.value.where.file == __file__


def test_a_workflow_cannot_wait_for_its_own_job() -> None:
    declare("orders")
    ematix.workflow("nightly", jobs=["orders"], triggered_by="orders")
    with pytest.raises(DependencyCycle, match="nightly → nightly"):
        current_registry().check()


def test_a_stream_is_no_job_of_a_workflow() -> None:
    declare("orders")
    current_registry().streams["clicks"] = object()  # type: ignore[assignment]  # its name is all that counts
    ematix.workflow("nightly", jobs=["orders", "clicks"], schedule="0 2 * * *")
    with pytest.raises(DeclarationError, match=r"(?s)the stream 'clicks'.*flow consume clicks") as raised:
        current_registry().check()
    assert raised.value.where is not None


def test_a_workflow_and_a_pipeline_cannot_share_a_name() -> None:
    declare("orders")
    ematix.workflow("orders", jobs=["orders"], schedule="0 2 * * *")
    with pytest.raises(DuplicateName, match="a workflow and of a pipeline"):
        current_registry().check()


def test_a_single_upstream_may_be_given_as_it_is() -> None:
    declare("orders")

    @ematix.pipeline(target=Events, name="sums", depends_on="orders")
    def load() -> str:
        return "SELECT 1"

    assert load.spec.depends_on == ("orders",)


def test_a_circle_through_post_load_references_is_refused() -> None:
    ematix.pipeline(target=Events, name="a", transforms_post=[ematix.transform_ref("b")])(lambda: "SELECT 1")
    ematix.pipeline(target=Events, name="b", transforms_post=[ematix.transform_ref("a")])(lambda: "SELECT 1")
    with pytest.raises(DependencyCycle, match="run each other"):
        current_registry().check()


def test_graph_questions_on_plain_edges() -> None:
    edges = {"a": (), "b": ("a",), "c": ("b",), "d": ("a",)}
    assert topological_order(edges) == ["a", "b", "d", "c"]
    assert find_cycle(edges) is None


MODULE = """
from ematix_flow import Annotated, BigInt, ManagedTable, ematix, pk

class Events(ManagedTable):
    __schema__ = "analytics"
    __tablename__ = "events"
    event_id: Annotated[BigInt, pk()]

@ematix.pipeline(target=Events, target_connection="warehouse"{options})
def ingest(conn):
    return "SELECT 1 AS event_id"
"""


def write_module(folder: Path, name: str, text: str) -> None:
    (folder / f"{name}.py").write_text(textwrap.dedent(text))


def test_a_module_is_loaded_from_the_working_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_module(tmp_path, "loadable_pipelines", MODULE.format(options=""))
    monkeypatch.chdir(tmp_path)
    assert list(load_module("loadable_pipelines").pipelines) == ["ingest"]


def test_a_module_is_loaded_by_its_path(tmp_path: Path) -> None:
    write_module(tmp_path, "by_path_pipelines", MODULE.format(options=""))
    assert list(load_module(str(tmp_path / "by_path_pipelines.py")).pipelines) == ["ingest"]


def test_a_file_called_like_a_module_of_python_is_refused(tmp_path: Path) -> None:
    write_module(tmp_path, "calendar", MODULE.format(options=""))
    with pytest.raises(UsageError, match="another module is called 'calendar'"):
        load_module(str(tmp_path / "calendar.py"))


def test_a_wrong_option_points_at_the_line_of_the_decorator(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_module(tmp_path, "wrong_option", MODULE.format(options=', mode="apend"'))
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ValueError, match="Did you mean 'append'") as raised:
        load_module("wrong_option")
    assert str(raised.value.where) == "wrong_option.py:9"  # type: ignore[attr-defined]


def test_a_module_that_raises_is_reported_with_its_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_module(tmp_path, "raising_module", "x = 1\ny = x / 0\n")
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ModuleLoadError, match="ZeroDivisionError") as raised:
        load_module("raising_module")
    assert str(raised.value.where) == "raising_module.py:2"


def test_a_syntax_error_is_reported_with_its_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_module(tmp_path, "broken_syntax", "x = 1\ndef y(:\n")
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ModuleLoadError) as raised:
        load_module("broken_syntax")
    assert str(raised.value.where) == "broken_syntax.py:2"


def test_a_module_that_imports_something_missing_says_what(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_module(tmp_path, "imports_missing", "import not_there_at_all\n")
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ModuleLoadError, match="not_there_at_all"):
        load_module("imports_missing")


def test_an_unknown_module_suggests_a_file_that_is_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_module(tmp_path, "my_pipelines", "")
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UsageError, match="Did you mean 'my_pipelines'"):
        load_module("my_pipeline")
