"""The packages that verbs need, and the extra of tunefarm that brings each."""

from __future__ import annotations

import importlib.util

from tunefarm.errors import UserError

OLDEST = {
    "pyyaml": "6.0", "rich": "13.7", "typer": "0.15", "mlflow": "3.10", "torch": "2.11", "triton": "3.6",
    "ray": "2.60", "grpcio": "1.60", "optuna": "5.0", "cmaes": "0.10", "scipy": "1.11", "numpy": "1.26",
    "nvidia-ml-py": "12.560",
}  # fmt: skip
"""Oldest versions that work, as in pyproject.toml."""

CLIENT = ("pyyaml", "rich", "typer", "mlflow")
_MODULES = {"yaml": "pyyaml", "grpc": "grpcio", "pynvml": "nvidia-ml-py", "click": "typer", "sqlalchemy": "optuna"}
"""Modules that are not named as what brings them."""


def remedy(name: str) -> str:
    """How a package is installed."""
    return f"pip install 'tunefarm[{'client' if name in CLIENT else 'farm'}]'"


def missing(error: ModuleNotFoundError) -> UserError | None:
    """What to tell of a module that could not be imported; None if tunefarm does not ask for it."""
    module = (error.name or "").partition(".")[0]
    package = _MODULES.get(module, module)
    return UserError(f"{package} is not installed", hint=remedy(package)) if package in OLDEST else None


def lacking(*modules: str) -> str:
    """The first of some modules that is not installed; empty if all are."""
    return next((module for module in modules if importlib.util.find_spec(module) is None), "")


def require(*modules: str) -> None:
    """Refuses to go on without some modules.

    Raises:
        UserError: one is not installed.
    """
    if module := lacking(*modules):
        package = _MODULES.get(module, module)
        raise UserError(f"{package} is not installed", hint=remedy(package))
