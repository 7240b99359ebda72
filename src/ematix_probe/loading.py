"""Imports the user's files or module and finds the probes in them.

A probe is an object whose class has ``run`` and ``assertion_names``: data probes, load probes, and those of
other packages.
"""

from __future__ import annotations

import hashlib
import importlib
import importlib.util
import os
import re
import sys
import sysconfig
import traceback
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from types import ModuleType
from typing import Any

from ematix_probe.errors import ModuleLoadError, ProbeError, UsageError
from ematix_probe.location import caller_location
from ematix_probe.suggestions import did_you_mean

_PACKAGE = str(Path(__file__).parent)
_SKIPPED = ("__pycache__", "node_modules", "site-packages", "venv")


@dataclass(frozen=True)
class FoundProbe:
    """A probe and where it was found."""

    name: str
    probe: Any
    file: str
    where: str | None  # file:line of its declaration

    @property
    def kind(self) -> str:
        return "data" if hasattr(self.probe, "source") else "load"

    @property
    def subject(self) -> str:
        """What it probes, for people."""
        plan = self.probe.plan() if hasattr(self.probe, "plan") else None
        for holder, name in ((plan, "subject"), (plan, "target"), (self.probe, "table")):
            found = getattr(holder, name, None)
            label = found if isinstance(found, str) else getattr(found, "label", None)
            if label:
                return str(label)
        return ""

    @property
    def source(self) -> str | None:
        """Where its data is; None for a load probe."""
        return getattr(getattr(self.probe, "source", None), "label", None)


def is_probe(value: object) -> bool:
    """Whether it is a probe. Asks the class alone: an object may answer every question."""
    kind = type(value)
    return callable(getattr(kind, "run", None)) and callable(getattr(kind, "assertion_names", None))


def load_probes(paths: Sequence[str]) -> list[FoundProbe]:
    """The probes of files, folders and modules, each once, in the order of their declaration.

    ``PATH::NAME`` takes the probes of that name alone. ModuleLoadError points at the user's line.
    """
    found: dict[int, FoundProbe] = {}
    for given in paths:
        path, _, name = given.partition("::")
        here = _load(path)
        if name:
            here = select_probes(here, [name])
        for each in here:
            found.setdefault(id(each.probe), each)
    _refuse_duplicates(list(found.values()))
    return list(found.values())


def select_probes(found: Sequence[FoundProbe], names: Sequence[str]) -> list[FoundProbe]:
    """The probes with these names, which may have wildcards: ``orders_*``. UsageError for an unknown one."""
    if not names:
        return list(found)
    chosen: dict[str, FoundProbe] = {}
    for name in names:
        matching = [each for each in found if each.name == name or fnmatchcase(each.name, name)]
        if not matching:
            known = [each.name for each in found]
            raise UsageError(
                f"there is no probe {name!r}{did_you_mean(name, known)}",
                next_step=f"the probes are {', '.join(known[:12])}{', …' if len(known) > 12 else ''}",
            )
        chosen |= {each.name: each for each in matching}
    return [each for each in found if each.name in chosen]


def _load(given: str) -> list[FoundProbe]:
    path = Path(given)
    if path.is_dir():
        files = list(python_files(path))
        found = [each for file in files for each in _probes_of(_import_file(file), str(file))]
        if not found:
            raise UsageError(
                f"the folder {given} declares no probe",
                state=f"read: {', '.join(str(file) for file in files[:8])}" if files else None,
                next_step="a file is read if its name ends with .py and it contains the word probe",
            )
        return found
    if path.is_file() or given.endswith(".py") or os.sep in given:
        found = _probes_of(_import_file(_existing(path)), given)
    else:
        module = _import_module(given)
        found = _probes_of(module, getattr(module, "__file__", None) or given)
    if not found:
        raise UsageError(
            f"{given} declares no probe", next_step='declare one with  @probe.data(source=…, table="…")'
        )
    return found


def python_files(folder: Path) -> Iterator[Path]:
    """The files below a folder that may declare probes: those that contain the word."""
    for path in sorted(folder.iterdir(), key=lambda each: (each.is_dir(), each.name)):
        if path.name.startswith(".") or path.name in _SKIPPED:
            continue
        if path.is_dir():
            if not (path / "pyvenv.cfg").exists():
                yield from python_files(path)
        elif path.suffix == ".py" and path.name != "conftest.py" and _mentions_probe(path):
            yield path


def _mentions_probe(path: Path) -> bool:
    try:
        return b"probe" in path.read_bytes()
    except OSError as error:
        raise ModuleLoadError(
            f"{path} cannot be read: {error.strerror or error}",
            state="nothing was run",
            next_step="give the files that are meant instead of their folder",
        ) from None


def _probes_of(module: ModuleType, file: str) -> list[FoundProbe]:
    """The probes among the names of a module, and in its lists and dicts."""
    found: dict[int, FoundProbe] = {}
    for value in list(vars(module).values()):
        members = (
            value.values() if type(value) is dict else value if isinstance(value, (list, tuple)) else [value]
        )
        for each in members:
            if is_probe(each):
                where = getattr(each.plan(), "where", None) if hasattr(each, "plan") else None
                found.setdefault(id(each), FoundProbe(_name_of(each), each, file, where))
    return list(found.values())


def _name_of(probe: Any) -> str:
    return str(getattr(probe, "name", None) or getattr(probe, "__name__", None) or "probe")


def _refuse_duplicates(found: Sequence[FoundProbe]) -> None:
    """Two probes of one name would be one in the history and in reports."""
    first: dict[str, FoundProbe] = {}
    for each in found:
        other = first.setdefault(each.name, each)
        if other is not each:
            raise ModuleLoadError(
                f"two probes are called {each.name!r}",
                where=f"{short(other.where) or other.file} and {short(each.where) or each.file}",
                state="nothing was run",
                next_step="rename a function, or give one of them  name=",
            )


def short(where: str | None) -> str | None:
    """The location relative to the working directory, if it is below it."""
    if where is None:
        return None
    here = os.getcwd() + os.sep
    return where.removeprefix(here)


def _existing(path: Path) -> Path:
    if path.is_file():
        return path
    folder = path.parent
    here = sorted(each.name for each in folder.glob("*.py")) if folder.is_dir() else []
    raise UsageError(
        f"there is no file {path}{did_you_mean(path.name, here)}",
        next_step=f"the Python files there are {', '.join(here[:8])}" if here else "give the path of a file",
    )


def _import_file(path: Path) -> ModuleType:
    """Import a file under its own name, with its package's folder importable.

    Where another module has that name already, it gets one that nothing else has.
    """
    path = path.resolve()
    root, parts = path.parent, [path.stem]
    if path.stem == "__init__":
        root, parts = path.parent.parent, [path.parent.name]
    while (root / "__init__.py").exists():
        root, parts = root.parent, [root.name, *parts]
    name = ".".join(parts)
    if str(root) not in sys.path:
        sys.path.insert(0, str(root))
    loaded = sys.modules.get(name)
    if loaded is not None and _file_of(loaded) == path:
        return loaded
    found = None
    if loaded is None and all(part.isidentifier() for part in parts):
        with _user_errors(str(path)):
            found = importlib.util.find_spec(name)
    if found is not None and found.origin and Path(found.origin).resolve() == path:
        with _user_errors(str(path)):
            return importlib.import_module(name)
    digest = hashlib.sha256(str(path).encode()).hexdigest()[:12]
    name = f"_probes_{digest}_{re.sub(r'[^0-9A-Za-z]', '_', path.stem)}"
    if name in sys.modules:
        return sys.modules[name]
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise UsageError(f"{path} is not a Python file")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    try:
        with _user_errors(str(path)):
            spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[name]
        raise
    return module


def _import_module(name: str) -> ModuleType:
    if not all(part.isidentifier() for part in name.split(".")):
        raise UsageError(
            f"{name!r} is neither a file, a folder nor a module",
            next_step="give the path of a .py file, or a module's name such as  checks.orders",
        )
    here = os.getcwd()
    if here not in sys.path:
        sys.path.insert(0, here)
    try:
        with _user_errors(name):
            return importlib.import_module(name)
    except ModuleLoadError as error:
        missing = error.__cause__
        if (
            isinstance(missing, ModuleNotFoundError)
            and missing.name
            and f"{name}.".startswith(f"{missing.name}.")
        ):
            near = [path.name for path in Path(here).glob("*.py")]
            raise UsageError(
                f"there is no file, folder or module {name!r} in {here}{did_you_mean(f'{name}.py', near)}",
                next_step="give the path of a .py file",
            ) from None
        raise


def _file_of(module: ModuleType) -> Path | None:
    file = getattr(module, "__file__", None)
    return Path(file).resolve() if file else None


class _user_errors:
    """Within the block, what the user's code raises becomes a ModuleLoadError with the user's line."""

    def __init__(self, what: str) -> None:
        self._what = short(what) or what

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> None:
        if error is None or isinstance(error, (KeyboardInterrupt, GeneratorExit)):
            return
        if isinstance(error, ProbeError):
            error.where = short(error.where or _user_line(error))
            return
        if hasattr(error, "what") and hasattr(error, "exit_code"):
            return  # an error of ematix_flow, which says where itself
        raise ModuleLoadError(
            f"{self._what} raised {type(error).__name__} while it was imported: {error}",
            where=short(_user_line(error)),
            state="nothing was run",
            next_step="fix it there, and run the same command again",
        ) from error


def _user_line(error: BaseException) -> str | None:
    """The innermost line of the user's own files in the traceback of an error."""
    if isinstance(error, SyntaxError) and error.filename:
        return f"{error.filename}:{error.lineno or 1}"
    skipped = (_PACKAGE, "<", *{path + os.sep for path in map(sysconfig.get_path, ("stdlib", "platstdlib"))})
    own = [
        f"{frame.f_code.co_filename}:{line}"
        for frame, line in traceback.walk_tb(error.__traceback__)
        if not frame.f_code.co_filename.startswith(skipped)
        and "site-packages" not in frame.f_code.co_filename
    ]
    return own[-1] if own else caller_location()
