"""The tables of the benchmarks as a user of ematix-flow declares them."""

from __future__ import annotations

from ematix_flow import BigInt, Date, Integer, ManagedTable, Numeric, Text

Amount = Numeric[15, 2]  # type: ignore[type-arg]


class Orders(ManagedTable):
    __tablename__ = "orders"

    o_orderkey: BigInt
    o_custkey: BigInt
    o_orderstatus: Text
    o_totalprice: Amount
    o_orderdate: Date
    o_orderpriority: Text
    o_clerk: Text
    o_shippriority: Integer
    o_comment: Text


class Lineitem(ManagedTable):
    __tablename__ = "lineitem"

    l_orderkey: BigInt
    l_partkey: BigInt
    l_suppkey: BigInt
    l_linenumber: Integer
    l_quantity: Amount
    l_extendedprice: Amount
    l_discount: Amount
    l_tax: Amount
    l_returnflag: Text
    l_linestatus: Text
    l_shipdate: Date
    l_commitdate: Date
    l_receiptdate: Date
    l_shipinstruct: Text
    l_shipmode: Text
    l_comment: Text


TABLES = {"orders": Orders, "lineitem": Lineitem}
