"""Spec + world -> Plan: DDL diff, source range, path, guarantee, tuning. Values, no side effects."""
