"""Samples of running streams: what a stream did in the last seconds, for charts."""
