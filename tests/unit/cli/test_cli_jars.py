"""``flow jars list``: what the lock names, and what is here."""

from __future__ import annotations


def test_every_locked_jar_is_listed_with_its_hash(flow, tmp_path, monkeypatch):
    monkeypatch.setenv("EMATIX_FLOW_CACHE", str(tmp_path / "cache"))
    listed = flow("jars", "list", "-o", "json").json
    assert listed
    assert all(len(jar["sha256"]) == 64 and jar["present"] is False for jar in listed)


def test_an_unknown_group_gets_a_suggestion(flow):
    failed = flow("jars", "list", "kafak")
    assert failed.code == 2
    assert "Did you mean 'kafka'?" in failed.err
