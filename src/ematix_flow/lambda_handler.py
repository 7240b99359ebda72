"""The handler of an AWS Lambda function that runs slots: ``ematix_flow.lambda_handler.handler``."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def handler(event: Mapping[str, Any], context: object = None) -> dict[str, int]:
    """Run the slot that a scheduler sent by ``lambda://``, and return the exit code of the command.

    A failed run is not a failed invocation: the slot records the failure and is tried again by its policy.
    Raises ValueError for any other event, so that only ``run-slot`` can be called.
    """
    arguments = event.get("arguments") if isinstance(event, Mapping) else None
    if not isinstance(arguments, list) or not all(isinstance(each, str) for each in arguments):
        raise ValueError("the event has no list of arguments: it does not come from flow scheduler")
    if arguments[:1] != ["run-slot"]:
        raise ValueError("only run-slot is run here")
    from ematix_flow.cli.main import main

    return {"exit_code": main(arguments)}
