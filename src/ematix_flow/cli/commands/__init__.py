"""One module a command. `ematix_flow.cli.command_list` knows their names and imports none of them."""
