"""Streaming pipelines: their parts, functions that run them, and the registry of declared streams."""

from __future__ import annotations

from ematix_flow.api.stream_declaration import Lookup, Source
from ematix_flow.api.stream_registry import (
    get_streaming_pipeline,
    list_streaming_pipelines,
    register_streaming_pipeline,
    render_streaming_pipeline_toml,
)
from ematix_flow.api.stream_toml import run_pipeline
from ematix_flow.api.streaming import (
    KafkaToKafkaEosPipeline,
    StreamingPipeline,
    run_streaming_pipeline,
    streaming_pipeline,
)
from ematix_flow.api.target import Target
from ematix_flow.spec.cdc import CDC

__all__ = [
    "CDC",
    "KafkaToKafkaEosPipeline",
    "Lookup",
    "Source",
    "StreamingPipeline",
    "Target",
    "get_streaming_pipeline",
    "list_streaming_pipelines",
    "register_streaming_pipeline",
    "render_streaming_pipeline_toml",
    "run_pipeline",
    "run_streaming_pipeline",
    "streaming_pipeline",
]
