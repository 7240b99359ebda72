"""The registry of what a module declared, dependencies, cycles, selectors."""
