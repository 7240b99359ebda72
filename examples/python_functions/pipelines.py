"""Averages prices by quantity, with functions written in Python."""

import pyarrow as pa
import pyarrow.compute as pc

from ematix_flow import ematix, udaf, udf


@udf(args=("Float64", "Int64"), returns="Float64")
def with_cents(price, cents):
    """Called once for each batch of rows, with an Arrow array for each argument."""
    return pc.add(price, pc.divide(cents.cast(pa.float64()), 100.0))


@udaf(args=("Float64", "Int64"), state=("Float64", "Int64"), returns="Float64", name="vwap")
class Vwap:
    """The average price, weighted by quantity."""

    def __init__(self):
        self.paid, self.quantity = 0.0, 0

    def update_batch(self, prices, quantities):
        self.paid += pc.sum(pc.multiply(prices, quantities.cast(pa.float64()))).as_py() or 0.0
        self.quantity += pc.sum(quantities).as_py() or 0

    def merge_batch(self, paid, quantity):
        self.paid += pc.sum(paid).as_py() or 0.0
        self.quantity += pc.sum(quantity).as_py() or 0

    def evaluate(self):
        return pa.array([self.paid / self.quantity if self.quantity else None], pa.float64())

    def state(self):
        return pa.array([self.paid], pa.float64()), pa.array([self.quantity], pa.int64())


@ematix.connection
class files:
    kind = "object_store_local"
    path = "incoming"
    format = "json_lines"


@ematix.connection
class warehouse:
    kind = "sqlite"
    path = "warehouse.db"


@ematix.streaming_pipeline(
    source=files,
    source_query="quotes",
    source_options={"settle_seconds": 0},  # files are complete when they appear
    target=warehouse,
    target_table="prices",
    transform_sql="""
        SELECT symbol, vwap(with_cents(price, cents), quantity) AS vwap, count(*) AS quotes
        FROM source GROUP BY symbol
    """,
    udfs=[with_cents],
    aggregate_udfs=[Vwap],
)
def prices():
    """One row for each symbol of a batch."""
