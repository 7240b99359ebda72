"""What an error says beyond what happened."""

from __future__ import annotations

import pytest

from ematix_flow.errors import did_you_mean


@pytest.mark.parametrize(
    ("written", "told"),
    [
        ("sales.ordrs", " Did you mean 'sales.orders'?"),
        ("SALES.ORDERS", " Did you mean 'sales.orders'?"),
        ("users", " Did you mean 'Users'?"),
        ("zebra", " Known: Users, sales.orders."),
    ],
)
def test_the_nearest_name_is_told_however_it_is_spelled(written: str, told: str) -> None:
    assert did_you_mean(written, ["sales.orders", "Users"]) == told


def test_without_names_nothing_is_told() -> None:
    assert did_you_mean("x", []) == ""
