"""Python loads this at the start of every child of `python -m tunefarm.runtime`, whose PYTHONPATH leads here first."""

import importlib.machinery
import importlib.util
import sys
from pathlib import Path

HERE = str(Path(__file__).parent)


def _next() -> None:
    """Loads the sitecustomize that this one hides, if there is one."""
    rest = [entry for entry in sys.path if entry != HERE]
    found = importlib.machinery.PathFinder.find_spec("sitecustomize", rest)
    if found is not None and found.loader is not None:
        module = importlib.util.module_from_spec(found)
        found.loader.exec_module(module)


_next()
try:
    from tunefarm.runtime.__main__ import follow
except ImportError:  # the child runs in another environment
    pass
else:
    follow()
