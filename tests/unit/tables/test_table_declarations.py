"""Declaring tables: the forms a user may write, and what they mean."""

import json
from typing import Annotated, Optional

import pytest

from ematix_flow.api.tables import table_spec
from ematix_flow.errors import DeclarationError
from ematix_flow.markers import natural_key, nullable, pk
from ematix_flow.normalize import (
    default,
    derive,
    empty_to_null,
    filter_where,
    lower,
    parse_timestamp,
    to_timezone,
    trim,
)
from ematix_flow.spec.tables import TableSpec
from ematix_flow.spec.types import DataType
from ematix_flow.table import Column, ManagedTable, table
from ematix_flow.types import (
    JSON,
    JSONB,
    UUID,
    BigInt,
    Boolean,
    Bytes,
    Date,
    Double,
    Float,
    Integer,
    Numeric,
    SmallInt,
    String,
    Text,
    Timestamp,
    TimestampTZ,
)


def test_an_annotated_subclass_is_a_table():
    class Events(ManagedTable):
        __schema__ = "analytics"
        __tablename__ = "events"

        event_id: Annotated[BigInt, pk()]
        name: Text | None
        received_at: TimestampTZ

    spec = Events.spec
    assert spec.label == "analytics.events"
    assert spec.primary_key == ("event_id",)
    assert [(c.name, str(c.type), c.nullable) for c in spec.columns] == [
        ("event_id", "BigInt", False),
        ("name", "Text", True),
        ("received_at", "TimestampTZ", False),
    ]


def test_a_decorated_class_is_a_table_with_normalisers():
    @table(schema="analytics")
    class CustomerDim:
        """Customers as they are now."""

        customer_id: Annotated[BigInt, pk()]
        email: Annotated[String[256] | None, lower(), trim(), empty_to_null()]
        name: Text | None
        updated_at: Annotated[TimestampTZ, parse_timestamp()]

    assert issubclass(CustomerDim, ManagedTable)
    spec = CustomerDim.spec
    assert spec.label == "analytics.customer_dim"
    assert spec.doc == "Customers as they are now."
    assert spec.column("email").type == DataType("string", length=256)
    assert spec.column("email").nullable
    assert [n.name for n in spec.column("email").normalizers] == ["lower", "trim", "empty_to_null"]
    assert CustomerDim.__module__ == __name__


def test_the_decorator_takes_a_name_and_goes_without_arguments():
    @table(schema="s", name="other")
    class Named:
        id: BigInt

    @table
    class BareName:
        id: BigInt

    @table(schema=None)
    class NoSchema:
        id: BigInt

    assert (Named.spec.schema, Named.spec.name) == ("s", "other")
    assert (BareName.spec.schema, BareName.spec.name) == (None, "bare_name")
    assert NoSchema.spec.schema is None


def test_every_type_resolves():
    class Everything(ManagedTable):
        a: SmallInt
        b: Integer
        c: BigInt
        d: Float
        e: Double
        f: Numeric[10, 2]
        g: Boolean
        h: Text
        i: String[3]
        j: Date
        k: Timestamp
        l: TimestampTZ  # noqa: E741
        m: JSON
        n: JSONB
        o: UUID
        p: Bytes

    assert [str(c.type) for c in Everything.spec.columns] == [
        *(
            "SmallInt",
            "Integer",
            "BigInt",
            "Float",
            "Double",
            "Numeric[10, 2]",
            "Boolean",
            "Text",
            "String[3]",
        ),
        *("Date", "Timestamp", "TimestampTZ", "JSON", "JSONB", "UUID", "Bytes"),
    ]


def test_parameters_in_brackets_and_in_parentheses_are_the_same_type():
    assert String(256) is String[256] is String(length=256)
    assert Numeric(10, 2) is Numeric[10, 2] is Numeric(precision=10, scale=2)
    assert Text() is Text
    assert repr(Numeric[10, 2]) == "Numeric[10, 2]"


@pytest.mark.parametrize(
    ("write", "complaint"),
    [
        (lambda: String[0], "length above 0"),
        (lambda: String["x"], "whole numbers"),
        (lambda: Numeric[10], "precision, scale"),
        (lambda: Numeric[2, 5], "scale <= precision"),
        (lambda: Text[5], "takes no parameter"),
        (lambda: String[2][3], "takes no parameter"),
        (lambda: String(size=2), "takes no 'size'"),
    ],
)
def test_wrong_parameters_are_refused(write, complaint):
    with pytest.raises(DeclarationError, match=complaint):
        write()


def test_a_column_is_not_null_unless_it_says_so():
    class T(ManagedTable):
        a: Text
        b: Text | None
        c: Optional[Text]  # noqa: UP045  # this spelling is what is tested
        d: Annotated[Text, nullable()]
        e: Annotated[Optional[String[5]], lower()]  # noqa: UP045
        f: Annotated[String[5], lower()] | None
        g: None | Text  # noqa: RUF036
        h: Optional["Text"]

    assert [c.nullable for c in T.spec.columns] == [False] + [True] * 7
    assert [n.name for n in T.spec.column("f").normalizers] == ["lower"]


def test_columns_can_be_attributes():
    class T(ManagedTable):
        id = Column(BigInt, primary_key=True)
        amount = Column(Numeric(10, 2), nullable=False)
        mail = Column(Text, name="e-mail", normalizers=[trim()])

    assert [(c.name, c.nullable, c.primary_key) for c in T.spec.columns] == [
        ("id", False, True),
        ("amount", False, False),
        ("e-mail", True, False),
    ]


def test_columns_are_inherited_from_abstract_bases():
    class Audited(ManagedTable):
        __abstract__ = True
        __schema__ = "audit"

        created_at: TimestampTZ
        note: Text | None

    class Stamped:
        stamp: BigInt

    class Order(Audited, Stamped):
        id: Annotated[BigInt, pk()]
        note: Text

    assert Order.spec.column_names == ("stamp", "created_at", "note", "id")
    assert not Order.spec.column("note").nullable
    assert Order.spec.schema == "audit"
    with pytest.raises(DeclarationError, match="abstract"):
        table_spec(Audited)


def test_a_subclass_of_a_table_has_its_own_name():
    class Base(ManagedTable):
        __tablename__ = "base_table"
        id: BigInt

    class Derived(Base):
        extra: Text | None

    assert Derived.spec.name == "derived"
    assert Derived.spec.column_names == ("id", "extra")


def test_keys_and_constraints_reach_the_spec():
    class T(ManagedTable):
        __merge_keys__ = ("a", "b")
        __unique_constraints__ = (("b", "c"), "d")

        a: Annotated[BigInt, pk(autoincrement=True)]
        b: Annotated[BigInt, pk()]
        c: Annotated[Text, natural_key("z")]
        d: Annotated[Text, natural_key("z"), natural_key()]

    assert T.spec.primary_key == ("a", "b")
    assert T.spec.merge_keys == ("a", "b")
    assert T.spec.unique == (("b", "c"), ("d",))
    assert T.spec.natural_keys == (("d",), ("c", "d"))


def test_a_table_shows_the_columns_that_a_checker_needs():
    class T(ManagedTable):
        __unique_constraints__ = (("a",),)
        a: Annotated[BigInt, pk()]
        b: Text | None

    assert [(c.name, c.nullable, c.primary_key) for c in T.columns] == [
        ("a", False, True),
        ("b", True, False),
    ]
    assert T.__table_spec__ is T.spec


def test_a_table_can_be_shown():
    class T(ManagedTable):
        id: Annotated[BigInt, pk()]
        mail: Annotated[Text | None, lower()]

    assert repr(T) == "table t\n  id    BigInt, primary key\n  mail  Text, lower"
    assert "<td>mail</td>" in T._repr_html_()


def test_a_spec_survives_json():
    class T(ManagedTable):
        __schema__ = "s"
        id: Annotated[BigInt, pk()]
        mail: Annotated[Text | None, lower(), default("nobody"), parse_timestamp(on_failure="error")]
        both: Annotated[Text, derive("a || b"), natural_key()]

    assert TableSpec.from_json(json.loads(json.dumps(T.spec.to_json()))) == T.spec


# --- what is refused, and what the error says ------------------------------------------------------


@pytest.mark.parametrize(
    ("annotation", "instead"),
    [(int, "BigInt"), (str, "Text"), (bool, "Boolean"), (float, "Double"), (dict, "JSONB")],
)
def test_a_python_type_is_refused_with_the_column_type_to_write(annotation, instead):
    with pytest.raises(DeclarationError) as caught:
        type(ManagedTable)("T", (ManagedTable,), {"__annotations__": {"amount": annotation}})
    assert "column 'amount' of T" in caught.value.what
    assert instead in caught.value.next_step


def test_an_error_points_at_the_class():
    with pytest.raises(DeclarationError) as caught:

        class T(ManagedTable):
            id: Annotated[BigInt | None, pk()]

    assert "may be null" in caught.value.what
    with open(__file__) as file:
        text = file.read().splitlines()[caught.value.where.line - 1]
    assert text.strip() == "class T(ManagedTable):"


@pytest.mark.parametrize(
    ("annotation", "complaint"),
    [
        (Annotated[BigInt, pk(), nullable()], "may be null"),
        (BigInt | Text, "several types"),
        (String, r"write String\[length\] or Text"),
        (Numeric, r"Numeric\[precision, scale\]"),
        (Annotated[Text, lower], "lower is not called"),
        (Annotated[Text, pk], "pk is not called"),
        (Annotated[Text, "trim"], r"'trim' in Annotated\[…\] is not a marker. Did you mean trim\(\)"),
        (Annotated[Text, "a remark"], "is not a marker"),
        (Annotated[Text, 42], "42 in Annotated.* is not a marker"),
        (Annotated[Text, {"max": 3}], "is not a marker"),
        (Annotated[BigInt, lower()], r"lower\(\) returns text, and the column is BigInt"),
        (Annotated[Boolean, parse_timestamp()], "returns a time, and the column is Boolean"),
        (Annotated[BigInt, default("x")], "does not fit a column of type BigInt"),
        (Annotated[Text, filter_where("x > 1")], "works on rows"),
        (Annotated[Text, lower(), derive("a")], "must come first"),
        (Annotated[TimestampTZ, to_timezone("Europe/Berlin")], "local time"),
        (Column(Text), "annotated with a Column"),
        ("Txet", "did you mean"),
        ("String[", "fails"),
        ("String[0]", "length above 0"),
    ],
)
def test_a_wrong_annotation_is_refused(annotation, complaint):
    with pytest.raises(DeclarationError, match=f"(?i){complaint}") as caught:
        type(ManagedTable)("T", (ManagedTable,), {"__annotations__": {"c": annotation}})
    assert "column 'c'" in caught.value.what


def test_a_value_in_the_class_body_is_refused():
    with pytest.raises(DeclarationError, match="has a value assigned"):

        class T(ManagedTable):
            name: Text = "x"


def test_a_table_without_columns_is_refused():
    with pytest.raises(DeclarationError, match="declares no column"):

        class T(ManagedTable):
            __schema__ = "s"


def test_a_constraint_on_an_unknown_column_is_refused():
    with pytest.raises(DeclarationError, match="'nope', which is not one of its columns"):

        class T(ManagedTable):
            __merge_keys__ = ("nope",)
            id: BigInt


def test_constraints_must_be_groups():
    with pytest.raises(DeclarationError, match="must list groups"):

        class T(ManagedTable):
            __unique_constraints__ = "id"
            id: BigInt


def test_classes_of_other_frameworks_are_refused():
    import dataclasses

    with pytest.raises(DeclarationError, match="is a dataclass"):

        @table(schema="s")
        @dataclasses.dataclass
        class T:
            id: int

    with pytest.raises(DeclarationError, match="decorates a class"):
        table(schema="s")(lambda: None)


def test_what_is_no_table_is_refused():
    with pytest.raises(DeclarationError, match="is not a table"):
        table_spec("events")
