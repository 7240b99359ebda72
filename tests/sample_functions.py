"""Python functions for SQL that several tests use."""

from __future__ import annotations

import pyarrow as pa
import pyarrow.compute as pc

from ematix_flow import udaf


@udaf(args=("Float64", "Float64"), state=("Float64", "Float64"), returns="Float64", name="vwap")
class Vwap:
    def __init__(self) -> None:
        self.num = 0.0
        self.den = 0.0

    def update_batch(self, prices: pa.Array, qtys: pa.Array) -> None:
        self.num += pc.sum(pc.multiply(prices, qtys)).as_py() or 0.0
        self.den += pc.sum(qtys).as_py() or 0.0

    def merge_batch(self, num_states: pa.Array, den_states: pa.Array) -> None:
        self.num += pc.sum(num_states).as_py() or 0.0
        self.den += pc.sum(den_states).as_py() or 0.0

    def evaluate(self) -> pa.Array:
        if self.den == 0:
            return pa.array([None], type=pa.float64())
        return pa.array([self.num / self.den], type=pa.float64())

    def state(self) -> tuple[pa.Array, pa.Array]:
        return (pa.array([self.num], type=pa.float64()), pa.array([self.den], type=pa.float64()))
