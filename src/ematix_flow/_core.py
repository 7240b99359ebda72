"""Brokers for direct use without a pipeline: ``from ematix_flow._core import KafkaBackend``.

Each is imported with its driver when it is first used.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from ematix_flow.errors import ConfigError

if TYPE_CHECKING:
    from ematix_flow.backends.kafka.direct_backend import KafkaBackend as KafkaBackend
    from ematix_flow.backends.kinesis.direct_backend import KinesisBackend as KinesisBackend
    from ematix_flow.backends.pubsub.direct_backend import PubSubBackend as PubSubBackend
    from ematix_flow.backends.rabbitmq.direct_backend import RabbitMQBackend as RabbitMQBackend

# name -> (module, the extra that brings its driver)
_BACKENDS = {
    "KafkaBackend": ("ematix_flow.backends.kafka.direct_backend", "kafka"),
    "RabbitMQBackend": ("ematix_flow.backends.rabbitmq.direct_backend", "rabbitmq"),
    "PubSubBackend": ("ematix_flow.backends.pubsub.direct_backend", "pubsub"),
    "KinesisBackend": ("ematix_flow.backends.kinesis.direct_backend", "kinesis"),
}
__all__ = sorted(_BACKENDS)


def __getattr__(name: str) -> Any:
    if name not in _BACKENDS:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    module, extra = _BACKENDS[name]
    try:
        return getattr(importlib.import_module(module), name)
    except ImportError as error:
        if (error.name or "").startswith("ematix_flow"):
            raise
        raise ConfigError(
            f"{name} needs the Python package {error.name!r}, which is not installed",
            next_step=f'pip install "ematix-flow-spark[{extra}]"',
        ) from error


def __dir__() -> list[str]:
    return __all__
