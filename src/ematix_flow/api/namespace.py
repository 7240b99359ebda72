"""``ematix``: the one name under which all decorators are found."""

from __future__ import annotations

from ematix_flow.api.connection import connection
from ematix_flow.api.options import TransformRef
from ematix_flow.api.pipeline import pipeline
from ematix_flow.api.streaming import streaming_pipeline
from ematix_flow.api.tables import table
from ematix_flow.api.target import Target
from ematix_flow.api.workflow import transform, workflow


class Ematix:
    """The decorators. There is one instance, ``ematix``."""

    connection = staticmethod(connection)
    table = staticmethod(table)
    pipeline = staticmethod(pipeline)
    job = pipeline
    streaming_pipeline = staticmethod(streaming_pipeline)
    target = staticmethod(Target)
    workflow = staticmethod(workflow)
    transform = staticmethod(transform)
    transform_ref = staticmethod(TransformRef)

    def __repr__(self) -> str:
        names = sorted(name for name in vars(type(self)) if not name.startswith("_"))
        return f"<ematix: {', '.join(names)}>"


ematix = Ematix()
