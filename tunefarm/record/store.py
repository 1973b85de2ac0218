"""MLflow's client, set up as a guest in a sweep, and the experiment that runs belong to."""

from __future__ import annotations

import logging
import os
import re
from pathlib import Path
from typing import Any

from tunefarm.errors import InfrastructureError

SERVERS = ("http", "https", "databricks")
"""Schemes of URIs at which a server is asked; the rest are databases."""

_REQUEST_S = 20


def connect(uri: str) -> Any:
    """MLflow's client of a store, which is tracking store and registry; what is sent is ours alone to repeat."""
    # Set, not read: nothing leaves a sweep, and its terminal belongs to the CLI.
    os.environ["MLFLOW_DISABLE_TELEMETRY"] = "true"
    os.environ["MLFLOW_SUPPRESS_PRINTING_URL_TO_STDOUT"] = "true"
    # Its own patience is minutes for each request, and a request made again may leave a second run: a study that could
    # not be written is written anew, as a whole.
    os.environ["MLFLOW_HTTP_REQUEST_MAX_RETRIES"] = "0"
    os.environ["MLFLOW_HTTP_REQUEST_TIMEOUT"] = str(_REQUEST_S)
    from mlflow import MlflowClient

    for noisy in ("mlflow", "alembic", "urllib3"):
        logging.getLogger(noisy).setLevel(logging.ERROR)
    if path := sqlite_path(uri):
        path.parent.mkdir(parents=True, exist_ok=True)
    return MlflowClient(tracking_uri=uri, registry_uri=uri)


def sqlite_path(uri: str) -> Path | None:
    """The file of an SQLite database, None for another store."""
    scheme, _, path = uri.partition(":///")
    return Path(path) if scheme.startswith("sqlite") and path else None


_KIND = {"mlflow.experimentKind": "custom_model_development"}
"""Lets MLflow's UI open on runs and charts; without it a new experiment opens as one of language models."""


def find_experiment(client: Any, name: str, uri: str) -> str:
    """The id of an MLflow experiment, made if there is none.

    Raises:
        InfrastructureError: it was deleted there.
    """
    from mlflow.exceptions import MlflowException

    found = client.get_experiment_by_name(name)
    if found is None:
        try:
            return str(client.create_experiment(name, artifact_location=_artifacts(name, uri), tags=_KIND))
        except MlflowException:
            # Another sweep made it in the meantime; anything else is raised below.
            found = client.get_experiment_by_name(name)
            if found is None:
                raise
    if found.lifecycle_stage == "deleted":
        raise InfrastructureError(
            f"experiment {name!r} was deleted there",
            hint=f"`mlflow experiments restore --experiment-id {found.experiment_id}`, or rename the workload",
        )
    return str(found.experiment_id)


def _artifacts(name: str, uri: str) -> str | None:
    """Where artifacts go: beside a database; a server knows itself.

    MLflow's own default, `./mlruns`, would later be taken for a folder of runs, which it refuses to read.
    """
    if uri.split(":", 1)[0] in SERVERS:
        return None
    folder = (sqlite_path(uri) or Path("mlflow.db")).parent / "mlartifacts"
    return (folder / re.sub(r"[^\w.-]", "_", name)).resolve().as_uri()
