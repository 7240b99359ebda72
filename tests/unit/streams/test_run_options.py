"""The options of a run of a stream: one value with the defaults of every public signature."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import fields
from typing import Any

import pytest

from ematix_flow.api.stream_toml import run_pipeline
from ematix_flow.api.streaming import StreamingPipeline, run_streaming_pipeline
from ematix_flow.errors import ConfigError
from ematix_flow.streams.restarts import RestartPolicy
from ematix_flow.streams.run_options import StreamRunOptions

OPTIONS = {option.name: option.default for option in fields(StreamRunOptions)}


@pytest.mark.parametrize(
    ("function", "without"),
    [
        (StreamingPipeline.run, set()),
        (StreamingPipeline.start, set()),
        (run_streaming_pipeline, {"watch"}),
        (run_pipeline, {"watch", "run_log"}),  # which is run_log_url there
    ],
)
def test_every_way_to_run_a_stream_takes_its_options_with_the_same_defaults(
    function: Callable[..., Any], without: set[str]
) -> None:
    taken = {each.name: each.default for each in inspect.signature(function).parameters.values()}
    expected = {name: default for name, default in OPTIONS.items() if name not in without}
    assert {name: taken.get(name, "missing") for name in expected} == expected


def test_a_stream_is_restarted_only_if_asked() -> None:
    assert StreamRunOptions(max_restarts=5).restart_policy().max_restarts == 0
    options = StreamRunOptions(restart_on_error=True, max_restarts=5, initial_backoff_ms=90, max_backoff_ms=7)
    assert options.restart_policy() == RestartPolicy(7, 7, 5, 60)
    with pytest.raises(ConfigError):
        StreamRunOptions(max_backoff_ms=0).restart_policy()
