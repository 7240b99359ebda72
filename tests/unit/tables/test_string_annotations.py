"""Tables under postponed evaluation: every annotation reaches us as a string."""

from __future__ import annotations

from typing import Annotated, ClassVar, Optional

import pytest

from ematix_flow.errors import DeclarationError
from ematix_flow.markers import natural_key, pk
from ematix_flow.normalize import lower, trim
from ematix_flow.table import Column, ManagedTable, table
from ematix_flow.types import BigInt, Numeric, String, Text


def test_string_annotations_mean_the_same():
    @table(schema="analytics")
    class CustomerDim:
        kind: ClassVar[str] = "dimension"

        customer_id: Annotated[BigInt, pk()]
        email: Annotated[String[256] | None, lower(), trim()]
        name: Optional[Text]  # noqa: UP045  # this spelling is what is tested
        balance: Annotated[Numeric[10, 2], natural_key()]

    spec = CustomerDim.spec
    assert spec.column_names == ("customer_id", "email", "name", "balance")
    assert [c.nullable for c in spec.columns] == [False, True, True, False]
    assert spec.natural_keys == (("balance",),)


def test_names_of_the_enclosing_function_are_known():
    from ematix_flow.types import UUID

    class T(ManagedTable):
        id: UUID
        other = Column(Text)

    assert str(T.spec.column("id").type) == "UUID"


def test_a_quoted_annotation_inside_a_string_annotation_is_read():
    class T(ManagedTable):
        id: Annotated["BigInt", pk()]  # noqa: UP037

    assert T.spec.primary_key == ("id",)


def test_an_unknown_name_is_an_error_at_the_class_that_names_the_column():
    with pytest.raises(DeclarationError) as caught:

        class T(ManagedTable):
            id: BigInt
            name: Strng[256]  # noqa: F821

    assert "column 'name' of T" in caught.value.what
    assert "Did you mean 'String'?" in caught.value.what
    assert caught.value.next_step == "correct the spelling: String"
    with open(__file__) as file:
        line = file.read().splitlines()[caught.value.where.line - 1]
    assert line.strip() == "class T(ManagedTable):"


def test_a_type_that_is_not_imported_has_to_be_imported():
    with pytest.raises(DeclarationError) as caught:

        class T(ManagedTable):
            valid: Boolean  # noqa: F821

    assert caught.value.next_step == "import it at the top of the module"
