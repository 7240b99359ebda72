"""The frame around the commands: help, versions, usage errors, unexpected errors, exit codes."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from ematix_flow import __version__
from ematix_flow.cli import app
from ematix_flow.cli.command_list import COMMANDS, HIDDEN, command_names
from ematix_flow.cli.main import main


def test_help_lists_every_command(flow):
    shown = flow("--help")
    assert shown.code == 0
    assert all(f"\n  {name} " in shown.out for name in command_names() if name not in HIDDEN)


@pytest.mark.parametrize("arguments", [[], ["-h"], ["--help"]])
def test_flow_alone_shows_its_help(flow, arguments):
    assert flow(*arguments).out.startswith("Usage: flow COMMAND")


def test_the_version_is_shown(flow):
    assert flow("--version").out == f"flow {__version__}\n"


@pytest.mark.parametrize("name", command_names())
def test_every_command_has_its_own_help(flow, name):
    shown = flow(name, "--help")
    assert shown.code == 0
    assert shown.out.startswith(f"Usage: flow {name}")
    assert shown.err == ""


def test_each_command_is_one_module():
    from ematix_flow.cli import commands

    modules = {path.stem.replace("_", "-") for path in Path(commands.__path__[0]).glob("*.py")}
    assert modules - {"--init--"} == set(command_names())
    assert sum(len(section) for section in COMMANDS.values()) == len(command_names()) - len(HIDDEN)


@pytest.mark.parametrize("command", ["status", "init", "demo", "doctor"])
def test_a_deleted_working_directory_has_its_own_error(flow, command, tmp_path, monkeypatch):
    gone = tmp_path / "gone"
    gone.mkdir()
    monkeypatch.chdir(gone)
    gone.rmdir()
    failed = flow(command)
    assert failed.code == 2
    assert failed.err == (
        "error: the working directory of this process was deleted\n"
        "  next:  change to a folder that exists, then start the command again\n"
    )


def test_an_unknown_command_gets_a_suggestion(flow):
    failed = flow("lst")
    assert failed.code == 2
    assert failed.err == (
        "error: there is no command 'lst'. Did you mean 'list'?\n  next:  flow --help  lists the commands\n"
    )
    assert failed.out == ""


def test_an_unknown_subcommand_gets_a_suggestion(flow):
    failed = flow("runs", "lst")
    assert failed.code == 2
    assert "Did you mean 'list'?" in failed.err


def test_an_unknown_option_gets_a_suggestion(flow):
    failed = flow("list", "--modul", "x")
    assert failed.code == 2
    assert "no such option: --modul. Did you mean --module?" in failed.err
    assert "next:  flow list --help" in failed.err


def test_a_wrong_choice_names_the_right_ones(flow):
    failed = flow("list", "--output", "yaml")
    assert failed.code == 2
    assert "'yaml' is not one of 'text', 'json'" in failed.err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["run", "--workers", "x"], "--workers takes a whole number, not 'x'"),
        (["run", "--workers", "0"], "--workers takes a number from 1 up, not '0'"),
        (["runs", "list", "-n", "1.5"], "--limit takes a whole number, not '1.5'"),
        (["run-due", "--interval", "soon"], "--interval takes a number, not 'soon'"),
    ],
)
def test_a_wrong_number_has_a_plain_error(flow, arguments, message):
    failed = flow(*arguments)
    assert failed.code == 2
    assert failed.err.startswith(f"error: {message}\n  next:  flow ")


@pytest.mark.parametrize("family", ["connections", "secrets", "jars", "dlq", "alerts", "transform"])
def test_a_family_of_commands_alone_shows_them(flow, family):
    shown = flow(family)
    assert (shown.code, shown.err) == (0, "")
    assert shown.out == flow(family, "--help").out and "Commands:" in shown.out


@pytest.mark.parametrize("option", [["--output", "json"], ["-o", "json"], ["--format=json"], ["-ojson"]])
def test_an_error_is_json_when_json_was_asked_for(flow, option):
    failed = flow("list", *option)
    assert failed.code == 2
    assert failed.json["error"]["type"] == "UsageError"
    assert failed.json["error"]["exit_code"] == 2
    assert failed.err == ""


def test_an_unexpected_error_is_one_line_and_a_saved_traceback(flow, project, monkeypatch):
    monkeypatch.setattr("ematix_flow.cli.commands.list.write_table", lambda *_: 1 / 0)
    failed = flow("list", "--module", "pipelines")
    assert failed.code == 1
    assert failed.err.startswith("error: unexpected ZeroDivisionError: division by zero\n")
    assert "Traceback" not in failed.err
    (saved,) = Path(os.environ["EMATIX_FLOW_STATE"], "logs").iterdir()
    assert str(saved) in failed.err
    assert "ZeroDivisionError" in saved.read_text()


@pytest.mark.parametrize("place", ["before", "after"])
def test_debug_shows_the_traceback(flow, project, monkeypatch, place):
    monkeypatch.setattr("ematix_flow.cli.commands.list.write_table", lambda *_: 1 / 0)
    command = ["list", "--module", "pipelines"]
    failed = flow("--debug", *command) if place == "before" else flow(*command, "--debug")
    assert "Traceback (most recent call last)" in failed.err


def test_a_saved_traceback_holds_no_secret(flow, project, monkeypatch):
    def leak(*_):
        raise RuntimeError("postgres://etl:hunter2-secret@host/db")

    monkeypatch.setattr("ematix_flow.cli.commands.list.write_table", leak)
    failed = flow("list", "--module", "pipelines")
    (saved,) = Path(os.environ["EMATIX_FLOW_STATE"], "logs").iterdir()
    assert "hunter2-secret" not in failed.err + saved.read_text()


def test_ctrl_c_ends_with_130(flow, project, monkeypatch):
    def interrupt(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr("ematix_flow.cli.commands.list.write_table", interrupt)
    failed = flow("list", "--module", "pipelines")
    assert failed.code == 130
    assert failed.err.startswith("error: interrupted\n")


def test_a_warning_of_the_module_is_shown_with_its_place(flow, project, recwarn):
    (project / "warns.py").write_text("import warnings\nwarnings.warn('old habit', UserWarning)\n")
    import warnings

    with warnings.catch_warnings():
        warnings.simplefilter("default")
        shown = flow("list", "--module", "warns")
    assert "warning: old habit\n  where: warns.py:2\n" in shown.err


def test_a_reader_that_goes_away_is_no_error():
    reader, writer = os.pipe()
    os.close(reader)
    program = "import sys; from ematix_flow.cli.main import main; sys.exit(main(['--help']))"
    try:
        done = subprocess.run(
            [sys.executable, "-c", program], stdout=writer, stderr=subprocess.PIPE, text=True, check=False
        )
    finally:
        os.close(writer)
    assert (done.returncode, done.stderr) == (0, "")


def test_completion_can_be_shown(monkeypatch, capsys):
    monkeypatch.setenv("SHELL", "/bin/bash")
    monkeypatch.setenv("_TYPER_COMPLETE_TEST_DISABLE_SHELL_DETECTION", "1")
    monkeypatch.setattr(app, "_build_parser", app._build_parser.__wrapped__)  # which reads that variable
    assert main(["--show-completion", "bash"]) == 0
    assert "_FLOW_COMPLETE=complete_bash" in capsys.readouterr().out


def test_pipeline_names_are_completed(flow, project, monkeypatch, capsys):
    monkeypatch.setenv("_FLOW_COMPLETE", "complete_bash")
    monkeypatch.setenv("COMP_WORDS", "flow run --module pipelines.py re")
    monkeypatch.setenv("COMP_CWORD", "4")
    main([])
    assert capsys.readouterr().out.split() == ["report"]
