"""The settings that a session gets for buckets, one connection after the other."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from ematix_flow.backends.stores.s3a_settings import s3a_settings, settings_by_bucket
from ematix_flow.engine.spark import storage_settings
from ematix_flow.spec.connections import ObjectStoreS3Connection

OWN_SERVER = ObjectStoreS3Connection(
    name="minio",
    bucket="data",
    endpoint="http://localhost:9000",
    access_key_id="AK",
    secret_access_key="SK",
    session_token="TK",
)
AMAZON = ObjectStoreS3Connection(name="aws", bucket="data")


class Conf:
    """A session's settings."""

    def __init__(self) -> None:
        self.settings: dict[str, str] = {}

    def get(self, key: str, default: str | None) -> str | None:
        return self.settings.get(key, default)

    def set(self, key: str, value: str) -> None:
        self.settings[key] = value

    def unset(self, key: str) -> None:
        del self.settings[key]


class Session:
    def __init__(self) -> None:
        self.conf = Conf()


@pytest.fixture
def forgotten(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The buckets whose open file systems were closed."""
    found: list[str] = []
    monkeypatch.setattr(
        storage_settings, "_close_file_systems", lambda session, buckets: found.extend(buckets)
    )
    return found


def test_nothing_stays_of_another_server_with_a_bucket_of_the_same_name(forgotten: list[str]) -> None:
    session: Any = Session()
    storage_settings.apply_storage_settings(session, s3a_settings(OWN_SERVER))
    assert session.conf.settings == s3a_settings(OWN_SERVER)
    assert forgotten == []
    storage_settings.apply_storage_settings(session, s3a_settings(AMAZON))
    assert session.conf.settings == s3a_settings(AMAZON)
    assert forgotten == ["data"]


def test_a_setting_that_is_only_gone_is_a_difference(forgotten: list[str]) -> None:
    session: Any = Session()
    storage_settings.apply_storage_settings(session, s3a_settings(replace(AMAZON, region="eu-central-1")))
    storage_settings.apply_storage_settings(session, s3a_settings(replace(AMAZON, region="eu-central-1")))
    assert forgotten == []
    storage_settings.apply_storage_settings(session, s3a_settings(AMAZON))
    assert session.conf.settings == s3a_settings(AMAZON)
    assert forgotten == ["data"]


def test_a_bucket_keeps_its_settings_when_another_has_a_prefix_of_its_name(
    forgotten: list[str],
) -> None:
    session: Any = Session()
    longer = s3a_settings(replace(OWN_SERVER, bucket="data.eu"))
    storage_settings.apply_storage_settings(session, longer | {"spark.sql.shuffle.partitions": "8"})
    storage_settings.apply_storage_settings(session, s3a_settings(OWN_SERVER))
    storage_settings.apply_storage_settings(session, s3a_settings(AMAZON))
    assert session.conf.settings == longer | s3a_settings(AMAZON) | {"spark.sql.shuffle.partitions": "8"}
    assert forgotten == ["data"]


def test_every_setting_of_a_bucket_is_known() -> None:
    for connection in (OWN_SERVER, AMAZON, replace(AMAZON, anonymous=True, region="eu-central-1")):
        conf = s3a_settings(connection)
        assert set(conf) <= set(settings_by_bucket(conf)["data"])
