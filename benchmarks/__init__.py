"""Benchmarks: the same load by ematix-flow and by its rivals, in one run on one machine.

``python -m benchmarks --list`` lists the cases. The method is on the page docs/how-it-works/benchmarks.md.
"""
