"""What ``ematix-probe --help`` prints. Imports nothing: help is instant."""

from __future__ import annotations

COMMANDS = {
    "run": "Run the probes of files, folders or modules.",
    "list": "Show the probes that files, folders or modules declare.",
    "explain": "Show what a probe checks, and the statement that it becomes.",
    "doctor": "Check Python, the libraries and the history.",
    "runs": "Show recorded runs, their trends and differences, or delete old ones.",
}
_OPTIONS = {
    "--version": "Show the version.",
    "--debug": "Show the traceback of an error. Also EMATIX_PROBE_DEBUG=1.",
    "--install-completion": "Let your shell complete commands.",
    "--show-completion": "Print the completion script instead.",
    "-h, --help": "Show this help, or the help of a command.",
}
EXIT_CODES = "0 all passed, 1 something did not pass or failed, 2 usage or declaration, 130 interrupted"


def help_text() -> str:
    """What ``ematix-probe --help`` prints."""
    lines = [
        "Usage: ematix-probe COMMAND [OPTIONS] …",
        "",
        "Data quality and load tests as Python functions.",
    ]
    for section, entries in {"Commands": COMMANDS, "Options": _OPTIONS}.items():
        lines += ["", f"{section}:", *(f"  {name:<22}{text}" for name, text in entries.items())]
    lines += ["", f"Exit codes: {EXIT_CODES}."]
    return "\n".join(lines)
