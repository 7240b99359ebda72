"""Where Spark forks its Python workers from on one machine: with what every task needs in memory already.

Spark runs this in place of ``pyspark.daemon``. Imported once here, Arrow and what it drags along cost no
worker its first second or two.
"""

from __future__ import annotations

import contextlib
import importlib

NEEDED = (
    "pyarrow.compute",
    "pyarrow.json",
    "pandas",  # by Arrow, at the first list that becomes an array
    "pyspark.sql.pandas.serializers",
    "ematix_flow.engine.streams.decoding",
    "ematix_flow.backends.payloads.codecs",
    "psycopg",
)


def main() -> None:
    for name in NEEDED:
        with contextlib.suppress(Exception):  # who needs what cannot be imported will say so
            importlib.import_module(name)
    from pyspark.daemon import manager

    manager()  # type: ignore[no-untyped-call]


if __name__ == "__main__":
    main()
