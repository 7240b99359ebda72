"""``lambda://``: each run is an invocation of an AWS Lambda function with our handler.

Lambda does not report the outcome of an invocation: a run that dies is noticed when its claim expires.
"""

from __future__ import annotations

import json
import logging
from typing import Any

from ematix_flow.errors import ConfigError
from ematix_flow.observe.settings import ALERTERS_VARIABLE
from ematix_flow.schedule.executors.base import (
    CannotDispatch,
    Executor,
    RunDispatch,
    require_engine_without_secret,
    require_shared_run_log,
)

_log = logging.getLogger(__name__)


class LambdaExecutor(Executor):
    """Runs slots as invocations. The run log's URL is a variable of the function and is never sent."""

    def __init__(self, function: str, qualifier: str | None = None, region: str | None = None) -> None:
        self.function, self.qualifier = function, qualifier
        self._client = _open_client(region)

    def check(self, run_log: str, engine: str | None = None) -> None:
        require_shared_run_log("lambda://", run_log)
        require_engine_without_secret("lambda://", engine, f"among the variables of {self.function!r}")

    def check_alerts(self) -> None:
        _log.warning(
            "runs of lambda:// do not get the scheduler's alerters: set %s as a variable of the function %s",
            ALERTERS_VARIABLE,
            self.function,
        )

    def capacity(self) -> None:
        """No limit here: the function has its own, and Lambda retries throttled invocations."""
        return

    def dispatch(self, job: RunDispatch) -> None:
        from botocore.exceptions import BotoCoreError, ClientError

        version = {"Qualifier": self.qualifier} if self.qualifier else {}
        payload = json.dumps({"arguments": job.arguments()}).encode()
        name = job.claim.slot.pipeline
        try:
            answer = self._client.invoke(
                FunctionName=self.function, InvocationType="Event", Payload=payload, **version
            )
        except ClientError as error:
            raise CannotDispatch(
                f"Lambda refused the run of {name!r}: {error}",
                next_step=f"check that {self.function!r} is there and that lambda:InvokeFunction is allowed",
            ) from error
        except BotoCoreError as error:
            raise CannotDispatch(
                f"the run of {name!r} could not be sent to Lambda: {error}",
                next_step="check the network and the credentials for AWS",
            ) from error
        if answer["StatusCode"] != 202:
            raise CannotDispatch(f"Lambda answered the run of {name!r} with {answer['StatusCode']}, not 202")

    def close(self, grace: float) -> None:
        """Invocations go on by themselves."""

    def abandon(self) -> None:
        """Nothing to do."""


def _open_client(region: str | None) -> Any:
    try:
        import boto3
        from botocore.config import Config
        from botocore.exceptions import BotoCoreError
    except ImportError as error:
        raise ConfigError(
            "lambda:// needs boto3, which is not installed",
            next_step="pip install 'ematix-flow-spark[executor-lambda]'",
        ) from error
    config = Config(connect_timeout=5, read_timeout=30, retries={"mode": "standard", "max_attempts": 3})
    try:
        return boto3.client("lambda", region_name=region, config=config)
    except (BotoCoreError, ValueError) as error:
        raise ConfigError(
            f"lambda:// cannot be used: {error}", next_step="add &region= or set AWS_REGION"
        ) from error
