"""Gives a running session the settings of the object stores that it reads and writes.

Settings go to the session. Two things do not follow a changed setting: Java keeps the file system of a bucket
open with the keys of its first use, and it trusts the authorities that it knew at its start. This module
fixes both in the driver's Java, which is the only one in local mode.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ematix_flow.backends.stores.s3a_settings import CA_CERT_SETTING, settings_by_bucket
from ematix_flow.errors import ConfigError, Unsupported

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_PASSWORD = "changeit"  # Java's own default: the store holds no secret

_trusted: dict[int, set[str]] = {}  # certificate files by the Java process that trusts them


def apply_storage_settings(session: SparkSession, conf: Mapping[str, str]) -> None:
    """Apply the settings, and remove other settings of the same buckets from earlier connections.

    File systems and certificates of earlier settings are replaced.
    """
    authorities = sorted({value for key, value in conf.items() if key.startswith(CA_CERT_SETTING)})
    if authorities:
        _trust_certificates(session, authorities)
    settings = {key: value for key, value in conf.items() if not key.startswith(CA_CERT_SETTING)}
    changed = []
    for bucket, wanted in settings_by_bucket(settings).items():
        before = {key: session.conf.get(key, None) for key in wanted}
        if any(value is not None for value in before.values()) and before != wanted:
            changed.append(bucket)
        for key, value in wanted.items():
            if value is None and before[key] is not None:
                session.conf.unset(key)
    for key, value in settings.items():
        session.conf.set(key, value)
    if changed:
        _close_file_systems(session, changed)


def _close_file_systems(session: SparkSession, buckets: list[str]) -> None:
    """Close the cached file systems of these buckets. The next use opens them with the new settings."""
    java = _driver_jvm(session)
    if java is None:
        return
    conf = session._jsparkSession.sessionState().newHadoopConf()
    for bucket in buckets:
        java.org.apache.hadoop.fs.FileSystem.get(java.java.net.URI.create(f"s3a://{bucket}/"), conf).close()


def _trust_certificates(session: SparkSession, files: list[str]) -> None:
    java = _driver_jvm(session)
    if java is None or not (session.sparkContext.master or "").startswith("local"):
        raise Unsupported(
            "ca_cert_path cannot be handed to Spark's other machines: each Java trusts its own authorities",
            next_step="add the authority to a trust store there, name it by "
            "-Djavax.net.ssl.trustStore=… in the executors' Java options, and leave ca_cert_path out",
        )
    known = _trusted.setdefault(id(session.sparkContext), set())
    if set(files) <= known:
        return
    known |= set(files)
    password = _to_java_characters(session, java)
    authorities = _certificate_authorities(java, password, sorted(known))
    factory = java.javax.net.ssl.TrustManagerFactory.getInstance(
        java.javax.net.ssl.TrustManagerFactory.getDefaultAlgorithm()
    )
    factory.init(authorities)
    context = java.javax.net.ssl.SSLContext.getInstance("TLS")
    context.init(None, factory.getTrustManagers(), None)
    java.javax.net.ssl.SSLContext.setDefault(context)
    place = java.java.io.File.createTempFile("ematix-flow-authorities", ".p12")
    place.deleteOnExit()
    out = java.java.io.FileOutputStream(place)
    authorities.store(out, password)
    out.close()
    for name, value in (("", place.getPath()), ("Type", "PKCS12"), ("Password", _PASSWORD)):
        java.java.lang.System.setProperty(f"javax.net.ssl.trustStore{name}", value)


def _certificate_authorities(java: Any, password: Any, files: list[str]) -> Any:
    """A trust store of Java's own authorities and those of the files."""
    system = java.java.lang.System.getProperty("java.home") + "/lib/security/cacerts"
    known = java.java.security.KeyStore.getInstance(java.java.io.File(system), password)
    store = java.java.security.KeyStore.getInstance("PKCS12")
    store.load(None, None)
    for alias in java.java.util.Collections.list(known.aliases()):
        if known.isCertificateEntry(alias):
            store.setCertificateEntry(alias, known.getCertificate(alias))
    factory = java.java.security.cert.CertificateFactory.getInstance("X.509")
    for number, file in enumerate(files):
        if not Path(file).is_file():
            raise ConfigError(f"ca_cert_path names {file}, which is not a file")
        stream = java.java.io.FileInputStream(file)
        for index, certificate in enumerate(factory.generateCertificates(stream)):
            store.setCertificateEntry(f"ematix-flow-{number}-{index}", certificate)
        stream.close()
    return store


def _to_java_characters(session: SparkSession, java: Any) -> Any:
    array = session.sparkContext._gateway.new_array(java.char, len(_PASSWORD))  # type: ignore[union-attr]
    for index, character in enumerate(_PASSWORD):
        array[index] = character
    return array


def _driver_jvm(session: SparkSession) -> Any:
    """The driver's JVM; None with Spark Connect."""
    return getattr(session, "_jvm", None)
