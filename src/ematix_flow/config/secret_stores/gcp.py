"""``${gcp:projects/…/secrets/…}``: Google Secret Manager, by way of Google's own client."""

from __future__ import annotations

import os
import re
from typing import Any, NoReturn

from ematix_flow.config.secret_stores.base import READ_SECONDS, Secret, SecretStore, import_client
from ematix_flow.errors import CannotConnect, ConfigError, MissingSecret

Client = Any  # Google's client has no types that we could check against

_LOGIN = "run  gcloud auth application-default login,  or set GOOGLE_APPLICATION_CREDENTIALS"
_FULL = re.compile(r"projects/[^/]+/(?:locations/[^/]+/)?secrets/[^/]+(?:/versions/[^/]+)?")
_SHORT = re.compile(r"[A-Za-z0-9_-]+(?:/versions/[^/]+)?")
_VERSION = re.compile(r"\d+|latest")


class GCPSecretManagerResolver(SecretStore):
    """Resolves ``${gcp:name}``: a full resource name, or a secret's name in the default project.

    ``name#3`` and ``name#latest`` name a version, by default the latest; any other ``#field`` is a field of a
    JSON secret.
    """

    prefix = "gcp"

    def __init__(self, client: Client | None = None, project: str | None = None) -> None:
        super().__init__()
        self._given = client
        self._project = project
        self._ours: Client | None = None

    def split_reference(self, reference: str) -> tuple[str, str]:
        name, field = super().split_reference(reference)
        if "/versions/" not in name and _VERSION.fullmatch(field):
            return f"{name}/versions/{field}", ""
        return name, field

    def read(self, name: str) -> Secret:
        import_client("google.cloud.secretmanager", self.prefix, "gcp")
        try:
            client = self._given or self._client()
            full = self._full_name(name)
            # our own limit: the library would try again for a minute
            answer = client.access_secret_version(request={"name": full}, timeout=READ_SECONDS, retry=None)
        except Exception as error:
            _explain(error, name)
        try:
            return bytes(answer.payload.data).decode("utf-8")
        except UnicodeDecodeError:
            pass
        # raised outside of the handler: the decoder's error carries the secret's bytes
        raise ConfigError(f"the secret gcp:{name} is binary, and no text in UTF-8")

    def _client(self) -> Client:
        import google.auth
        from google.cloud.secretmanager import SecretManagerServiceClient

        if self._ours is None:
            credentials, project = google.auth.default(
                scopes=["https://www.googleapis.com/auth/cloud-platform"]
            )
            self._ours = SecretManagerServiceClient(credentials=credentials)
            self._project = self._project or project
        return self._ours

    def _full_name(self, name: str) -> str:
        if not _FULL.fullmatch(name):
            project = self._project or os.environ.get("GOOGLE_CLOUD_PROJECT")
            if not _SHORT.fullmatch(name):
                raise ConfigError(
                    f"gcp:{name} is not the name of a secret",
                    next_step="write ${gcp:projects/PROJECT/secrets/NAME} or  …/NAME/versions/VERSION",
                )
            if not project:
                raise ConfigError(
                    f"gcp:{name} is a short name: in which project?",
                    next_step=f"set GOOGLE_CLOUD_PROJECT, or write ${{gcp:projects/PROJECT/secrets/{name}}}",
                )
            name = f"projects/{project}/secrets/{name}"
        return name if "/versions/" in name else f"{name}/versions/latest"


def _explain(error: Exception, name: str) -> NoReturn:
    """Turn an error of the libraries into one that a user understands."""
    import google.auth.exceptions as login
    from google.api_core import exceptions as known

    where = f"the secret gcp:{name}"
    if isinstance(error, login.DefaultCredentialsError):
        raise ConfigError(f"no login for Google Cloud: {error}", next_step=_LOGIN) from None
    if isinstance(error, (login.RefreshError, known.Unauthenticated)):
        raise ConfigError(f"the login for Google Cloud is refused: {error}", next_step=_LOGIN) from None
    if isinstance(error, known.NotFound):
        raise MissingSecret(
            f"{where} or its version is not there",
            next_step="gcloud secrets list  shows the secrets,  gcloud secrets versions list  the rest",
        ) from None
    if isinstance(error, known.PermissionDenied):
        raise ConfigError(
            f"Google Cloud does not let us read {where}: {error.message}",
            next_step="grant the role roles/secretmanager.secretAccessor on it",
        ) from None
    if isinstance(error, (known.ServerError, known.RetryError, known.TooManyRequests, login.TransportError)):
        raise CannotConnect(
            f"Google Secret Manager does not answer: {error}", next_step="gcloud secrets list"
        ) from None
    if isinstance(error, known.GoogleAPICallError):  # as for a version that is disabled or destroyed
        raise ConfigError(f"{where} could not be read: {error.message}") from None
    raise error
