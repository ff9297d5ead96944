"""Finding the app in a user's file."""

from __future__ import annotations

import importlib.util
import sys
import traceback
from pathlib import Path

from headrace.app import App
from headrace.errors import DefinitionError, HeadraceError, NotFoundError


def load_app(path: Path) -> App:
    """The App in a Python file, or in `app.py` of a folder."""
    file = path / "app.py" if path.is_dir() else path
    if not file.is_file():
        raise NotFoundError(
            f"There is no app at {path}.", remedy="Name a Python file, or a folder with an app.py."
        )
    if file.stem in sys.stdlib_module_names or file.stem in ("headrace", "pyspark"):
        raise DefinitionError(
            f"{file} has the name of the module {file.stem}, which others need.", remedy="Rename the file."
        )
    folder = str(file.parent.resolve())
    if folder not in sys.path:
        sys.path.insert(0, folder)
    spec = importlib.util.spec_from_file_location(file.stem, file)
    if spec is None or spec.loader is None:
        raise NotFoundError(f"{file} is not a Python file.", remedy="Name a file that ends in .py.")
    module = importlib.util.module_from_spec(spec)
    sys.modules[file.stem] = module
    try:
        spec.loader.exec_module(module)
    except HeadraceError:
        raise
    except (Exception, SystemExit) as error:
        raise _explain(file, error) from error
    apps = {id(value): value for value in vars(module).values() if isinstance(value, App)}
    if len(apps) != 1:
        found = "no App" if not apps else f"{len(apps)} Apps ({', '.join(app.name for app in apps.values())})"
        raise DefinitionError(f"{file} holds {found}.", remedy='Declare one: app = hr.App("name")')
    return next(iter(apps.values()))


def _explain(file: Path, error: BaseException) -> DefinitionError:
    """Say what a user's file raised, and the last line of the user's own that led there."""
    if isinstance(error, SyntaxError):
        where, text = f"{error.filename}:{error.lineno}", error.msg
    else:
        frames = traceback.extract_tb(error.__traceback__)
        own = [frame for frame in frames if Path(frame.filename).resolve().is_relative_to(file.parent.resolve())]
        where, text = f"{own[-1].filename}:{own[-1].lineno}" if own else str(file), str(error)
    return DefinitionError(
        f"{file} cannot be loaded: {type(error).__name__}: {text} ({where}).", remedy="Correct that line."
    )
