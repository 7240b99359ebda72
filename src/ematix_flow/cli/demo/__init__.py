"""The project of ``flow demo``: writes it, runs it, changes its source and explains the results."""
