"""What the product keeps between runs: run log, slots, dead letters and locks.

Ledger and watermark are not here: they live in each target, in the transaction of its data.
"""
