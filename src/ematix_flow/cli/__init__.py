"""The command line: one file a command in `commands`, imported when the command is called."""
