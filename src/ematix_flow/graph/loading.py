"""Importing the user's module so that its declarations land in one registry."""

from __future__ import annotations

import importlib
import os
import sys
import traceback
from pathlib import Path
from types import ModuleType

from ematix_flow.errors import FlowError, ModuleLoadError, UsageError, did_you_mean
from ematix_flow.graph.registry import Registry, current_registry
from ematix_flow.spec.location import SourceLocation


def load_module(name: str) -> Registry:
    """Import ``name`` (dotted, or a path to a .py file) with the working directory importable.

    Returns the registry in force, checked. What the module raises is shown with its line.
    """
    if name.endswith(".py"):
        path = Path(name)
        if not path.is_file():
            raise UsageError(f"there is no file {name}")
        _make_importable(str(path.resolve().parent))
        name = path.stem
    else:
        path = None
        _make_importable(os.getcwd())
    try:
        module = importlib.import_module(name)
    except FlowError:
        raise
    except ModuleNotFoundError as error:
        if error.name is not None and (error.name == name or name.startswith(error.name + ".")):
            raise _not_found(name) from None
        raise _raised(name, error) from error
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # a module may even call sys.exit()
        raise _raised(name, error) from error
    _refuse_namesake(name, path, module)
    registry = current_registry()
    registry.check()
    return registry


def _make_importable(folder: str) -> None:
    if folder not in sys.path:
        sys.path.insert(0, folder)


def _refuse_namesake(name: str, path: Path | None, module: ModuleType) -> None:
    """A file that is called like a module of Python or of a package is never imported."""
    wanted = path.resolve() if path is not None else Path.cwd() / f"{name}.py"
    found = getattr(module, "__file__", None)
    if wanted.is_file() and (found is None or Path(found).resolve() != wanted.resolve()):
        raise UsageError(
            f"{wanted.name} cannot be imported: another module is called {name!r} ({found or 'built in'})",
            next_step="give the file another name",
        )


def _not_found(name: str) -> FlowError:
    here = sorted(p.stem for p in Path.cwd().glob("*.py"))
    return UsageError(
        f"there is no module {name!r} in {Path.cwd()} or among the packages.{did_you_mean(name, here)}",
        next_step="run flow in the folder that holds the module, or give --module path/to/file.py",
    )


def _raised(name: str, error: BaseException) -> FlowError:
    """The innermost line outside of the import machinery and the standard library."""
    frames = [
        f
        for f in traceback.extract_tb(error.__traceback__)
        if not f.filename.startswith("<frozen") and os.sep + "importlib" + os.sep not in f.filename
    ]
    own = [
        f for f in frames if "site-packages" not in f.filename and not f.filename.startswith(sys.base_prefix)
    ]
    own = [f for f in own if not f.filename.startswith(os.path.dirname(os.path.dirname(__file__)))] or frames
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
