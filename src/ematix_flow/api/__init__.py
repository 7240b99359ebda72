"""The decorators and typed options that a user writes: they validate and build specs."""
