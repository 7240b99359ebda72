"""``${…}`` references: variables, defaults, secret stores, and what happens when they fail."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from ematix_flow.config.interpolate import expand_connection
from ematix_flow.errors import ConfigError, DeclarationError, FlowError
from ematix_flow.secrets import (
    AWSSecretsManagerResolver,
    EnvResolver,
    GCPSecretManagerResolver,
    MissingSecretError,
    SecretResolver,
    VaultResolver,
    expand,
    register_resolver,
    unregister_resolver,
)
from ematix_flow.spec.connections import (
    DuckDBConnection,
    KafkaConnection,
    ObjectStoreS3Connection,
    PostgresConnection,
    RedshiftConnection,
    SchemaRegistryConnection,
    connection_from_mapping,
    dsn_parts,
)
from ematix_flow.spec.location import SourceLocation


@pytest.fixture
def store() -> Iterator[dict[str, str]]:
    """A secret store under ``${store:…}``."""
    values: dict[str, str] = {}

    class Store:
        def resolve(self, reference: str) -> str:
            return values[reference]

    register_resolver("store", Store())
    yield values
    unregister_resolver("store")


@pytest.mark.parametrize(
    ("text", "expanded"),
    [
        ("plain", "plain"),
        ("${A}", "one"),
        ("x${A}y${lower}z", "xoneytwoz"),
        ("${env:A}", "one"),
        ("${MISSING:-else}", "else"),
        ("${EMPTY:-else}", "else"),
        ("${EMPTY}", ""),
        ("${MISSING:-}", ""),
        ("${A:-else}", "one"),
        ("${MISSING:-postgres://h:1/d}", "postgres://h:1/d"),
        ("${LIKE}", "${A}"),
        ("not ${closed", "not ${closed"),
        ("$A $$ {A}", "$A $$ {A}"),
    ],
)
def test_references_are_replaced_once(text: str, expanded: str) -> None:
    assert expand(text, env={"A": "one", "lower": "two", "EMPTY": "", "LIKE": "${A}"}) == expanded


def test_the_processes_environment_is_read_when_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    connection = PostgresConnection(name="w", url="${LATE_DSN}")
    for dsn in ("postgres://one/d", "postgres://two/d"):
        monkeypatch.setenv("LATE_DSN", dsn)
        assert expand_connection(connection).url == dsn
    assert EnvResolver().resolve("LATE_DSN") == "postgres://two/d"


def test_an_unset_variable_names_itself_its_connection_and_the_way_out() -> None:
    where = SourceLocation("pipelines.py", 7)
    with pytest.raises(MissingSecretError) as caught:
        expand_connection(PostgresConnection(name="wh", url="postgres://${NOWHERE}"), env={}, where=where)
    text = str(caught.value)
    assert "connection 'wh', field url: the environment variable NOWHERE is not set" in text
    assert "pipelines.py:7" in text
    assert "export NOWHERE=" in text
    assert isinstance(caught.value, KeyError)
    assert caught.value.exit_code == 2


def test_an_unknown_prefix_says_how_to_register_it() -> None:
    with pytest.raises(MissingSecretError, match=r"nothing resolves \$\{keychain:…\}") as caught:
        expand("${keychain:a#b}")
    assert 'register_resolver("keychain"' in str(caught.value)


@pytest.mark.parametrize("slip", ["vualt", "valt", "Vault"])
def test_a_slip_in_a_prefix_says_what_was_meant(slip: str) -> None:
    with pytest.raises(MissingSecretError, match="Did you mean 'vault'") as caught:
        expand(f"${{{slip}:a#b}}")
    assert caught.value.next_step == "write ${vault:…}"


@pytest.mark.parametrize("text", ["${}", "${two words}", "${1A}", "${:x}", "${a:}"])
def test_what_is_no_reference_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="a reference is written"):
        expand(text, env={})


def test_a_registered_resolver_answers_its_prefix(store: dict[str, str]) -> None:
    store["db#pw"] = "p@ss/word"
    connection = expand_connection(PostgresConnection(name="x", url="postgres://u:${store:db#pw}@h/d"))
    assert dsn_parts(connection).password == "p@ss/word"
    assert "p@ss/word" not in str(FlowError("refused: p@ss/word"))


def test_a_resolver_that_fails_is_named_with_its_cause(store: dict[str, str]) -> None:
    with pytest.raises(ConfigError, match=r"\$\{store:gone\} could not be read: KeyError"):
        expand("${store:gone}")


def test_a_resolver_that_gives_no_text_is_refused(store: dict[str, str]) -> None:
    store["x"] = 5  # type: ignore[assignment]
    with pytest.raises(ConfigError, match="gave int, not text"):
        expand("${store:x}")


def test_a_resolver_needs_a_prefix_and_a_resolve_method() -> None:
    with pytest.raises(ConfigError, match="is not a prefix"):
        register_resolver("a b", EnvResolver())
    with pytest.raises(ConfigError, match=r"no method resolve"):
        register_resolver("x", object())  # type: ignore[arg-type]
    unregister_resolver("never there")


def test_every_resolver_fits_the_protocol() -> None:
    resolvers = (
        EnvResolver(),
        VaultResolver(),
        AWSSecretsManagerResolver(),
        GCPSecretManagerResolver(),
    )
    assert all(isinstance(resolver, SecretResolver) for resolver in resolvers)


def test_a_numbers_reference_becomes_a_number() -> None:
    connection = RedshiftConnection(name="r", host="h", port="${P}", database="d", user="u", password="p")  # type: ignore[arg-type]
    assert expand_connection(connection, env={"P": "5500"}).port == 5500
    with pytest.raises(DeclarationError, match="port must be a whole number"):
        expand_connection(connection, env={"P": "many"})


def test_a_url_is_taken_apart_once_it_is_known() -> None:
    connection = DuckDBConnection(name="d", url="${WHERE}")
    assert expand_connection(connection, env={"WHERE": "duckdb:///w.duckdb"}).path == "/w.duckdb"
    with pytest.raises(DeclarationError, match="begins with sqlite://, the scheme of kind sqlite"):
        expand_connection(connection, env={"WHERE": "sqlite:///x"})


def test_checks_that_waited_for_a_value_are_made_at_the_declaration() -> None:
    connection = connection_from_mapping("l", {"kind": "object_store_local", "path": "x", "format": "${F}"})
    with pytest.raises(DeclarationError, match="format is 'xml'") as caught:
        expand_connection(connection, env={"F": "xml"}, where=SourceLocation("a.py", 3))
    assert caught.value.where == SourceLocation("a.py", 3)


@pytest.mark.parametrize(
    "fields", [{"bucket": "b", "prefix": "raw/${PART}/events"}, {"url": "s3://b/raw/${PART}/events"}]
)
def test_a_prefix_is_checked_once_its_references_are_known(fields: dict[str, str]) -> None:
    waiting = ObjectStoreS3Connection(name="lake", **fields)  # type: ignore[arg-type]
    assert expand_connection(waiting, env={"PART": "eu"}).prefix == "raw/eu/events"
    for part in ("", ".", "..", "eu/../us"):
        with pytest.raises(DeclarationError, match="has a part that is empty"):
            expand_connection(waiting, env={"PART": part})


def test_nested_registries_and_properties_are_expanded() -> None:
    registry = SchemaRegistryConnection(name="sr", url="${SR}")
    kafka = KafkaConnection(
        name="k", bootstrap_servers="${KB}", schema_registry=registry, properties={"client.rack": "${RACK}"}
    )
    expanded = expand_connection(kafka, env={"SR": "http://sr", "KB": "h:1", "RACK": "r1"})
    assert expanded.schema_registry == SchemaRegistryConnection(name="sr", url="http://sr")
    assert (expanded.bootstrap_servers, expanded.properties["client.rack"]) == ("h:1", "r1")


def test_expanding_twice_changes_nothing_even_when_a_secret_looks_like_a_reference() -> None:
    connection = connection_from_mapping("k", {"kind": "kafka", "url": "kafka://u:${PW}@h:1"})
    once = expand_connection(connection, env={"PW": "a${B}c"})
    assert once.sasl_plain_password == "a${B}c"  # type: ignore[attr-defined]
    assert expand_connection(once, env={}) == once
