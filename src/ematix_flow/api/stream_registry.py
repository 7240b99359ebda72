"""Looks up, lists and registers the streams of this process by name."""

from __future__ import annotations

import dataclasses

from ematix_flow.api.stream_toml_writer import stream_to_toml
from ematix_flow.api.streaming import StreamingPipeline
from ematix_flow.errors import DeclarationError
from ematix_flow.graph.registry import DeclaredStream, current_registry
from ematix_flow.spec.location import caller_location
from ematix_flow.spec.streams import StreamSpec


def get_streaming_pipeline(name: str) -> StreamingPipeline:
    """Return the registered stream of this name. Raises UnknownName, with similar names, if there is none."""
    handle: StreamingPipeline = current_registry().stream(name).handle
    return handle


def list_streaming_pipelines() -> list[str]:
    """Return the names of the registered streams, in the order of their declaration."""
    return list(current_registry().streams)


def register_streaming_pipeline(name: str, stream: StreamSpec | StreamingPipeline) -> StreamingPipeline:
    """Register a stream under a name, as the decorator does. Raises DuplicateName if the name is taken."""
    where = caller_location()
    spec = stream.spec if isinstance(stream, StreamingPipeline) else stream
    if not isinstance(spec, StreamSpec):
        raise DeclarationError(
            f"register_streaming_pipeline takes a streaming pipeline, not {type(stream).__name__}",
            where=where,
            next_step="declare one with @ematix.streaming_pipeline, or read one from a TOML file",
        )
    if not isinstance(name, str) or not name.strip():
        raise DeclarationError("a streaming pipeline needs a name", where=where)
    spec = dataclasses.replace(spec, name=name, where=where)
    registry = current_registry()
    handle = StreamingPipeline(spec, registry)
    registry.add_stream(DeclaredStream(spec, handle))
    return handle


def render_streaming_pipeline_toml(name: str) -> str:
    """Return a registered stream as TOML text; secrets stay ``${…}`` references or are masked."""
    return stream_to_toml(current_registry().stream(name).spec)
