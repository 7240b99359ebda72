"""The process that Spark forks its Python workers from on one machine, with the modules of every task
imported.

Spark runs this in place of ``pyspark.daemon``. Arrow is imported once here, which saves each worker a second.
Pandas is left out: Arrow imports it only when a list becomes an array, which a load never needs.
"""

from __future__ import annotations

import contextlib
import importlib

NEEDED = (
    "pyarrow.compute",
    "pyarrow.json",
    "pyspark.sql.pandas.serializers",
    "ematix_flow.engine.streams.decoding",
    "ematix_flow.backends.payloads.codecs",
    "psycopg",
)


def main() -> None:
    for name in NEEDED:
        with contextlib.suppress(Exception):  # a task that needs the module reports the error
            importlib.import_module(name)
    from pyspark.daemon import manager

    manager()  # type: ignore[no-untyped-call]


if __name__ == "__main__":
    main()
