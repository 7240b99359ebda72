"""Selectors, as dbt users know them."""

from __future__ import annotations

import pytest

from ematix_flow import Annotated, BigInt, ManagedTable, ematix, pk
from ematix_flow.errors import DeclarationError, FlowError, UnknownName, UsageError
from ematix_flow.graph.dependency_order import parallel_levels, upstreams_within
from ematix_flow.graph.registry import current_registry
from ematix_flow.graph.selection import select


class Events(ManagedTable):
    __tablename__ = "events"
    event_id: Annotated[BigInt, pk()]


def declare(name: str, *upstreams: str, tags: tuple[str, ...] = (), source: str | None = None) -> None:
    @ematix.pipeline(
        target=Events,
        target_connection="warehouse" if name != "export" else "lake",
        source_connection=source,
        name=name,
        depends_on=upstreams,
        tags=tags,
    )
    def load() -> str:
        return "SELECT 1 AS event_id"


@pytest.fixture
def shop() -> None:
    """raw_orders → orders → daily → report; raw_items → items → daily; export alone."""
    declare("raw_orders", source="shop")
    declare("raw_items", source="shop", tags=("nightly",))
    declare("orders", "raw_orders", tags=("nightly", "core"))
    declare("items", "raw_items", tags=("core",))
    declare("daily", "orders", "items", tags=("nightly",))
    declare("report", "daily")
    declare("export")
    declare("odd, name+")
    ematix.workflow("night", jobs=["orders", "items"], schedule="0 2 * * *")


@pytest.mark.usefixtures("shop")
@pytest.mark.parametrize(
    ("wanted", "chosen"),
    [
        ("orders", "orders"),
        ("orders items", "orders items"),
        ("raw_*", "raw_orders raw_items"),
        ("?tems", "items"),
        ("tag:nightly", "raw_items orders daily"),
        ("tag:night*", "raw_items orders daily"),
        ("tag:nightly,tag:core", "orders"),
        ("workflow:night", "orders items"),
        ("source:shop", "raw_orders raw_items"),
        ("target:lake", "export"),
        ("+orders", "raw_orders orders"),
        ("+daily", "raw_orders raw_items orders items daily"),
        ("1+daily", "orders items daily"),
        ("2+daily,source:shop", "raw_orders raw_items"),
        ("orders+", "orders daily report"),
        ("orders+1", "orders daily"),
        ("1+orders+1", "raw_orders orders daily"),
        ("@orders", "raw_orders raw_items orders items daily report"),
        ("workflow:night+1", "orders items daily"),
        ("+tag:core,raw_*", "raw_orders raw_items"),
        ("name:orders", "orders"),
    ],
)
def test_a_selector_chooses(wanted: str, chosen: str) -> None:
    assert select(current_registry(), [wanted]) == chosen.split()


@pytest.mark.usefixtures("shop")
def test_several_selectors_are_joined_and_exclusions_taken_away() -> None:
    registry = current_registry()
    assert select(registry, ["orders", "items"]) == ["orders", "items"]
    assert select(registry, ["+daily"], ["source:shop", "items"]) == ["orders", "daily"]


@pytest.mark.usefixtures("shop")
def test_a_name_may_contain_any_characters() -> None:
    assert select(current_registry(), ["odd, name+"]) == ["odd, name+"]


@pytest.mark.usefixtures("shop")
@pytest.mark.parametrize(
    ("wanted", "kind", "words"),
    [
        ("order", UnknownName, "no pipeline is named 'order'. Did you mean 'orders'?"),
        ("+order+", UnknownName, "no pipeline is named 'order'. Did you mean 'orders'?"),
        ("tag:nightli", UnknownName, "no pipeline has the tag 'nightli'. Did you mean 'nightly'?"),
        ("workflow:nigt", UnknownName, "there is no workflow 'nigt'. Did you mean 'night'?"),
        ("night", UnknownName, "There is a workflow of this name: workflow:night"),
        ("source:sohp", UnknownName, "no pipeline reads from 'sohp'. Did you mean 'shop'?"),
        ("target:lak", UnknownName, "no pipeline loads into 'lak'. Did you mean 'lake'?"),
        ("x_*", UnknownName, r"no pipeline matches 'x_\*'. Known: "),
        ("tags:nightly", UsageError, "there is no selector tags:. Did you mean 'tag'?"),
        ("orders,export", UsageError, "no pipeline matches all parts of 'orders,export'"),
        ("@orders+", UsageError, "is not a selector"),
        ("+", UsageError, "is not a selector"),
        ("orders,", UsageError, "is not a selector"),
        ("  ", UsageError, "a selector is empty"),
    ],
)
def test_a_selector_that_chooses_nothing_is_an_error(wanted: str, kind: type[FlowError], words: str) -> None:
    with pytest.raises(kind, match=words):
        select(current_registry(), [wanted])


@pytest.mark.usefixtures("shop")
def test_an_exclusion_of_nothing_or_of_everything_is_an_error() -> None:
    with pytest.raises(UnknownName, match="Did you mean 'orders'"):
        select(current_registry(), ["+daily"], ["order"])
    with pytest.raises(UsageError, match=r"--exclude orders\+ excludes everything"):
        select(current_registry(), ["orders"], ["orders+"])


@pytest.mark.parametrize("tags", [["a b"], ["a,b"], ["+a"], ["a:b"], [""], [3], "tag:x", 7])
def test_a_tag_that_no_selector_could_name_is_refused(tags: object) -> None:
    with pytest.raises(DeclarationError, match="tags= takes names"):
        ematix.pipeline(target=Events, tags=tags)  # type: ignore[arg-type]


def test_the_order_of_a_selection_knows_what_lies_between() -> None:
    edges = {"a": (), "b": ("a",), "c": ("b",), "d": ("a",), "e": ("c", "d")}
    assert upstreams_within(edges, {"a", "c", "e"}) == {"a": (), "c": ("a",), "e": ("c", "a")}
    assert parallel_levels(upstreams_within(edges, set(edges))) == [["a"], ["b", "d"], ["c"], ["e"]]
    assert parallel_levels(upstreams_within(edges, {"c", "d"})) == [["d", "c"]]
