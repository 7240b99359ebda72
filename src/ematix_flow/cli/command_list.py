"""The names of the commands, and what ``flow --help`` prints. Imports nothing: help is instant."""

from __future__ import annotations

# each command and its line in `flow --help`; its module in `commands` has the same name
COMMANDS = {
    "Get started": {
        "demo": "Load a small example project twice, and see what happens.",
        "init": "Create a new project that runs at once.",
        "doctor": "Check Python, Java, Spark and the folders that flow uses.",
    },
    "Look": {
        "list": "Show the pipelines that a module declares.",
        "status": "Show each pipeline's last run and when it is due next.",
        "freshness-check": "Show which pipelines are stale by their freshness_sla.",
        "web": "Serve a page with the state of pipelines, streams and runs.",
        "mcp": "Serve the project to an assistant, as tools that only read.",
        "plan": "Show what a run would do. Changes nothing.",
        "preview": "Show the plan and the first rows of the source.",
        "validate": "Check pipelines against their source and target.",
        "dry-run": "Do everything except the commit, and count the rows.",
        "probe": "Run data quality and load tests, and look at their history.",
    },
    "Run": {
        "run": "Run pipelines now, upstreams first.",
        "run-due": "Run all slots that are due, each once.",
        "scheduler": "Run slots when they are due, until stopped.",
        "clear": "Run slots again that were given up or skipped.",
        "pause": "Hold a run at its next safe point, or a schedule.",
        "resume": "Let a paused run or schedule go on.",
        "stop": "Ask a run to stop.",
        "restart": "Run a failed run again from the step that failed.",
        "actions": "Show what people asked to be done, and how it ended.",
        "consume": "Run the streams of a TOML file or of a module.",
        "consume-list": "Show the streams that a module declares.",
        "state": "Show the state that windows of streams keep.",
        "transform": "List named transforms, or run one by hand.",
        "runs": "Show the runs in the run log, or delete old ones.",
        "logs": "Show the log of a run.",
        "dlq": "Show dead letters; replay, park or purge them.",
        "quarantine": "Show rows that failed expectations; replay or purge them.",
        "maintain": "Compact lake tables, and remove files that are no longer needed.",
    },
    "Set up": {
        "connections": "List, check and define connections.",
        "secrets": "List and test the ${…} references of connections and settings.",
        "alerts": "Send a test alert.",
        "jars": "List or fetch the Java libraries that a backend needs.",
    },
}
_OPTIONS = {
    "--version": "Show the version.",
    "--log-format FORMAT": "Write messages as text, or as json: one object per line, on stderr.",
    "--debug": "Show the traceback of an error. Also EMATIX_FLOW_DEBUG=1.",
    "--install-completion": "Let your shell complete commands and pipeline names.",
    "--show-completion": "Print the completion script instead.",
    "-h, --help": "Show this help, or the help of a command.",
}
_EXIT_CODES = "0 ok, 1 failed, 2 usage, 3 changes pending, 4 locked, 5 cannot connect, 130 interrupted"
HIDDEN = ("run-slot", "run-action")  # for programs


def command_names() -> list[str]:
    return [*(name for commands in COMMANDS.values() for name in commands), *HIDDEN]


def help_text() -> str:
    """What ``flow --help`` prints."""
    lines = [
        "Usage: flow COMMAND [OPTIONS] …",
        "",
        "Declarative data pipelines in Python, exactly once, on Apache Spark.",
    ]
    for section, entries in {**COMMANDS, "Options": _OPTIONS}.items():
        lines += ["", f"{section}:", *(f"  {name:<22}{text}" for name, text in entries.items())]
    lines += ["", f"Exit codes: {_EXIT_CODES}."]
    return "\n".join(lines)
