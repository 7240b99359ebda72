"""Imports the user's module so that its declarations are in one registry."""

from __future__ import annotations

import importlib
import os
import sys
import sysconfig
import traceback
from pathlib import Path
from types import ModuleType

from ematix_flow.config.working_folder import working_folder
from ematix_flow.errors import FlowError, ModuleLoadError, UsageError, did_you_mean
from ematix_flow.graph.call_errors import as_declaration_error
from ematix_flow.graph.registry import Registry, current_registry
from ematix_flow.spec.location import SourceLocation, is_package_frame


def load_module(name: str) -> Registry:
    """Import ``name`` (dotted, or a path to a .py file) with the working directory importable.

    Returns the registry in force, checked. What the module raises is shown with its line.
    """
    if name.endswith(".py"):
        path = Path(name)
        if not path.is_file():
            raise _missing_file_error(path)
        folder, name = path.resolve().parent, path.stem
    else:
        path = None
        if not all(part.isidentifier() for part in name.split(".")):
            raise _invalid_module_name_error(name)
        folder = working_folder()
    module = import_user_module(name, folder)
    if module is None:
        raise _module_not_found_error(name)
    _refuse_shadowed_module(name, path, module)
    registry = current_registry()
    registry.check()
    return registry


def import_user_module(name: str, *folders: Path) -> ModuleType | None:
    """Import a module with these folders importable; None if there is none.

    What the module raises is shown with its line.
    """
    for folder in folders:
        _make_importable(str(folder))
    try:
        return importlib.import_module(name)
    except FlowError as error:
        raise error.with_location(_user_location(error)) from error.__cause__
    except ModuleNotFoundError as error:
        if error.name is not None and (error.name == name or name.startswith(error.name + ".")):
            return None
        raise _import_failure(name, error) from error
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # a module may even call sys.exit()
        raise _import_failure(name, error) from error


def python_files(folder: Path) -> list[str]:
    """The Python files of a folder: pipelines.py first, then those that mention ematix, then the rest."""

    def rank(path: Path) -> tuple[int, str]:
        if path.name == "pipelines.py":
            return 0, path.name
        try:
            mentions = b"ematix" in path.read_bytes()
        except OSError:
            mentions = False
        return 1 if mentions else 2, path.name

    return [path.name for path in sorted(folder.glob("*.py"), key=rank)] if folder.is_dir() else []


def _missing_file_error(path: Path) -> FlowError:
    folder = path.parent
    here = sorted(found.name for found in folder.glob("*.py")) if folder.is_dir() else []
    hint = did_you_mean(path.name, here) if here else ""
    return UsageError(
        f"there is no file {path}.{hint}" if hint else f"there is no file {path}",
        next_step="give --module the path of the file that declares the pipelines",
    )


def _invalid_module_name_error(name: str) -> FlowError:
    """The error for a folder, a path without .py, or a text that cannot be a module name."""
    folder = Path(name)
    here = python_files(folder)
    what = f"{name!r} is a folder, not a module" if folder.is_dir() else f"{name!r} is not a module name"
    step = (
        f"give --module {folder / here[0]}"
        if here
        else "give --module pipelines, or --module path/to/file.py"
    )
    return UsageError(what, next_step=step)


def _user_location(error: BaseException) -> SourceLocation | None:
    """The innermost line of the user's own files in the traceback of an error."""
    own = _user_frames(error)
    return SourceLocation(own[-1].filename, own[-1].lineno or 1) if own else None


def _user_frames(error: BaseException) -> list[traceback.FrameSummary]:
    """The frames of the user's own files: without Python's, those of packages, and generated code."""
    pythons = tuple({path + os.sep for path in map(sysconfig.get_path, ("stdlib", "platstdlib"))})
    return [
        traceback.FrameSummary(frame.f_code.co_filename, line, frame.f_code.co_name)
        for frame, line in traceback.walk_tb(error.__traceback__)
        if not is_package_frame(frame)
        and not frame.f_code.co_filename.startswith(("<", *pythons))
        and os.sep + "importlib" + os.sep not in frame.f_code.co_filename
        and "site-packages" not in frame.f_code.co_filename
    ]


def _make_importable(folder: str) -> None:
    if folder not in sys.path:
        sys.path.insert(0, folder)


def _refuse_shadowed_module(name: str, path: Path | None, module: ModuleType) -> None:
    """Refuse a file that has the name of a module of Python or of a package: it would never be imported."""
    wanted = path.resolve() if path is not None else working_folder() / f"{name}.py"
    found = getattr(module, "__file__", None)
    if wanted.is_file() and (found is None or Path(found).resolve() != wanted.resolve()):
        raise UsageError(
            f"{wanted.name} cannot be imported: another module is called {name!r} ({found or 'built in'})",
            next_step="give the file another name",
        )


def _module_not_found_error(name: str) -> FlowError:
    here = sorted(p.stem for p in working_folder().glob("*.py"))
    return UsageError(
        f"there is no module {name!r} in {working_folder()} or among the packages.{did_you_mean(name, here)}",
        next_step="run flow in the folder that holds the module, or give --module path/to/file.py",
    )


def _import_failure(name: str, error: BaseException) -> FlowError:
    refused = as_declaration_error(error)
    if refused is not None:
        return refused
    own = _user_frames(error) or traceback.extract_tb(error.__traceback__)
    if isinstance(error, SyntaxError) and error.filename:
        where: SourceLocation | None = SourceLocation(error.filename, error.lineno or 1)
    else:
        where = SourceLocation(own[-1].filename, own[-1].lineno or 1) if own else None
    return ModuleLoadError(
        f"module {name!r} raised {type(error).__name__} while it was imported: {error}",
        where=where,
        state="nothing was run",
        next_step=f"python -c 'import {name}'  shows the whole traceback",
    )
