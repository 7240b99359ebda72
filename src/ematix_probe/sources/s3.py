"""Where objects of a bucket are and who may read them: a value that never shows its keys."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any
from urllib.parse import urlsplit

from ematix_probe.environment import resolve
from ematix_probe.errors import CannotConnect, DeclarationError
from ematix_probe.location import caller_location
from ematix_probe.redaction import remember_secret

OPTIONS = (
    "region",
    "endpoint_url",
    "access_key",
    "secret_key",
    "session_token",
    "anonymous",
    "path_style",
    "ca_cert_path",
)
_TEXTS = ("region", "endpoint_url", "access_key", "secret_key", "session_token", "ca_cert_path")


@dataclass(frozen=True)
class S3Access:
    """How a bucket is reached. Without keys: the environment, ``~/.aws``, the machine's role."""

    region: str | None = None
    endpoint_url: str | None = None
    access_key: str | None = field(default=None, repr=False)
    secret_key: str | None = field(default=None, repr=False)
    session_token: str | None = field(default=None, repr=False)
    anonymous: bool = False
    path_style: bool | None = None
    ca_cert_path: str | None = None

    def __post_init__(self) -> None:
        if bool(self.access_key) != bool(self.secret_key):
            given, missing = ("access_key", "secret_key") if self.access_key else ("secret_key", "access_key")
            raise DeclarationError(
                f"{given} is given without {missing}",
                where=caller_location(),
                next_step="give both, or none for those of the environment",
            )
        if self.anonymous and self.access_key:
            raise DeclarationError("give anonymous= or keys, not both", where=caller_location())
        address = urlsplit(self.endpoint_url or "http:")
        if address.scheme not in ("http", "https") and "${" not in str(self.endpoint_url):
            raise DeclarationError(
                "endpoint_url= begins with http:// or https://",
                where=caller_location(),
                next_step='write  endpoint_url="https://…"',
            )

    def resolved(self) -> S3Access:
        """The same with ``${NAME}`` replaced by variables of the environment."""
        given = {name: getattr(self, name) for name in _TEXTS}
        found: dict[str, Any] = {name: resolve(value) for name, value in given.items() if value}
        whole = replace(self, **found)
        for secret in (whole.access_key, whole.secret_key, whole.session_token):
            remember_secret(secret or "")
        return whole

    def filesystem(self) -> Any:
        """pyarrow's file system of the buckets."""
        try:
            from pyarrow.fs import S3FileSystem
        except ImportError as error:  # a pyarrow that was built without it
            raise CannotConnect(
                "this pyarrow cannot read S3",
                next_step='pip install --force-reinstall "pyarrow>=18"',
            ) from error
        named: dict[str, Any] = {"anonymous": self.anonymous, "region": self.region}
        if self.access_key:
            named |= {"access_key": self.access_key, "secret_key": self.secret_key}
            named["session_token"] = self.session_token
        if self.endpoint_url:
            address = urlsplit(self.endpoint_url)
            named |= {
                "scheme": address.scheme,
                "endpoint_override": address.netloc + address.path.rstrip("/"),
            }
        if self.path_style is False:
            named["force_virtual_addressing"] = True
        if self.ca_cert_path:
            named["tls_ca_file_path"] = self.ca_cert_path
        try:
            return S3FileSystem(**{name: value for name, value in named.items() if value is not None})
        except (OSError, ValueError) as error:
            raise CannotConnect(f"cannot open S3: {error}") from error

    def delta_options(self) -> dict[str, str]:
        """The same as delta-rs names it."""
        options = {
            "AWS_REGION": self.region or ("us-east-1" if self.endpoint_url else None),
            "AWS_ENDPOINT_URL": self.endpoint_url,
            "AWS_ACCESS_KEY_ID": self.access_key,
            "AWS_SECRET_ACCESS_KEY": self.secret_key,
            "AWS_SESSION_TOKEN": self.session_token,
            "AWS_ALLOW_HTTP": "true" if (self.endpoint_url or "").startswith("http://") else None,
            "AWS_SKIP_SIGNATURE": "true" if self.anonymous else None,
            "AWS_VIRTUAL_HOSTED_STYLE_REQUEST": "true" if self.path_style is False else None,
        }
        return {name: value for name, value in options.items() if value is not None}

    def iceberg_options(self) -> dict[str, str]:
        """The same as pyiceberg names it."""
        options = {
            "s3.region": self.region or ("us-east-1" if self.endpoint_url else None),
            "s3.endpoint": self.endpoint_url,
            "s3.access-key-id": self.access_key,
            "s3.secret-access-key": self.secret_key,
            "s3.session-token": self.session_token,
            "s3.anonymous": "true" if self.anonymous else None,
            "s3.force-virtual-addressing": "true" if self.path_style is False else None,
            "py-io-impl": "pyiceberg.io.pyarrow.PyArrowFileIO",
        }
        return {name: value for name, value in options.items() if value is not None}


def s3_access(options: dict[str, Any], what: str) -> S3Access:
    """The access that the options of a source describe; DeclarationError for an option that is none."""
    for name in options:
        if name not in OPTIONS:
            raise DeclarationError(
                f"{what} takes no {name}=", where=caller_location(), state=f"it takes {', '.join(OPTIONS)}"
            )
    for name in _TEXTS:
        value = options.get(name)
        if value is not None and (not isinstance(value, str) or not value.strip()):
            raise DeclarationError(f"{name}= takes a text that is not empty", where=caller_location())
    return S3Access(**options)


def is_s3(path: str) -> bool:
    return path.lower().startswith(("s3://", "s3a://", "s3n://"))


def split_s3(path: str) -> tuple[str, str]:
    """Bucket and key of ``s3://bucket/key``."""
    bucket, _, key = path.split("://", 1)[1].partition("/")
    if not bucket:
        raise DeclarationError(f"{path!r} names no bucket", where=caller_location())
    return bucket, key.strip("/")
