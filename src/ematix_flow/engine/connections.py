"""The open connections of a run: resolves declared connections and opens each backend once."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from ematix_flow.backends.base import Backend, BatchSource, BatchTarget, SparkSource, SparkTarget
from ematix_flow.backends.registry import open_backend
from ematix_flow.backends.stores.s3a_settings import settings_by_bucket
from ematix_flow.errors import FlowError, Unsupported
from ematix_flow.graph.connections import resolve_for_use
from ematix_flow.plan.connection_comparison import ConnectionComparison, describe_differences
from ematix_flow.spec.pipelines import ConnectionRef, FileOptions, connection_label

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

StartSpark = Callable[[Sequence[str]], "SparkSession"]


class Connections:
    """Opens each backend at first use.

    ``spark`` starts Spark with the given groups of jars, at first use. ``failure`` translates an exception of
    Spark into one of our errors. ``apply_settings`` applies settings to a running session.
    """

    def __init__(
        self,
        spark: StartSpark,
        failure: Callable[[Exception, str], FlowError],
        apply_settings: Callable[[SparkSession, Mapping[str, str]], None],
    ) -> None:
        self._start_spark = spark
        self._failure = failure
        self._apply_settings = apply_settings
        self._backends: dict[Any, Backend] = {}

    def spark(self) -> SparkSession:
        """The session, with the jars and settings of all backends opened so far."""
        backends = list(self._backends.values())
        session = self._start_spark(sorted({group for each in backends for group in each.jar_groups}))
        settings: dict[str, str] = {}
        buckets: dict[str, dict[str, str | None]] = {}
        for backend in backends:
            conf = backend.spark_conf()
            for bucket, wanted in settings_by_bucket(conf).items():
                for key, there in buckets.setdefault(bucket, wanted).items():
                    unsaid = key.endswith(".endpoint.region") and None in (there, wanted[key])
                    if there != wanted[key] and not unsaid:
                        raise _conflicting_settings(key, backend)
            for key, value in conf.items():
                if settings.setdefault(key, value) != value:
                    raise _conflicting_settings(key, backend)
        self._apply_settings(session, settings)
        return session

    @contextmanager
    def spark_errors(self, what: str) -> Iterator[None]:
        """Translate what Spark raises within the block into one of our errors."""
        try:
            yield
        except FlowError:
            raise
        except Exception as error:
            raise self._failure(error, what) from error

    def backend(self, reference: ConnectionRef) -> Backend:
        key = reference if isinstance(reference, str) else (reference.name, id(reference))
        if key not in self._backends:
            self._backends[key] = open_backend(resolve_for_use(reference))
        return self._backends[key]

    def source(self, reference: ConnectionRef, files: FileOptions | None = None) -> BatchSource | SparkSource:
        """``files`` are the options for reading files, if the source has files."""
        backend = self.backend(reference)
        source = backend.source()
        if source is None:
            raise Unsupported(
                f"connection {connection_label(reference)!r} ({backend.kind}) is not a batch source"
            )
        return (
            source.with_file_options(files)
            if isinstance(source, SparkSource) and files is not None
            else source
        )

    def target(self, reference: ConnectionRef) -> BatchTarget:
        backend = self.backend(reference)
        target = backend.target()
        if target is None:
            raise Unsupported(
                f"connection {connection_label(reference)!r} ({backend.kind}) is not a batch target"
            )
        if isinstance(target, SparkTarget):
            target.use_spark(self.spark, self.spark_errors)
        return target


def _conflicting_settings(key: str, backend: Backend) -> Unsupported:
    """Two connections give Spark different settings for one bucket, which Spark knows only by name."""
    return Unsupported(
        f"connection {backend.connection.name!r} and another one of this pipeline give Spark different "
        f"settings for the same place ({key})",
        next_step="let both use the same endpoint and keys, or put one of them into a separate pipeline",
    )


def compare_connections(source: Backend, target: Backend) -> ConnectionComparison:
    """Compare the two databases. Asks nothing if the target cannot run queries of the source."""
    if not (target.capabilities.same_db and source.kind == target.kind):
        return ConnectionComparison(False)
    if source is target:
        return ConnectionComparison(True)
    if not source.is_same_database(target):
        return ConnectionComparison(False)
    return ConnectionComparison(True, describe_differences(source.query_context(), target.query_context()))
