"""What the product remembers between runs: the run log and the locks, below the state root.

Ledger and watermark are not here: they live in each target, in the transaction of its data.
"""
