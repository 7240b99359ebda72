"""One module a command. `ematix_flow.cli.main` knows their names and imports none of them."""
