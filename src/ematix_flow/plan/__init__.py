"""Spec + world -> Plan: DDL diff, source range, path, strategy, guarantee, tuning. Values, no side effects."""
