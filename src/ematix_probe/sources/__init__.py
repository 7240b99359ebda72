"""Where probes read: one module each. `base` is the contract, `resolving` finds a source."""
