"""MLflow's registry as a source of packs. A door of mlflow, which is imported when a URI is followed."""

from __future__ import annotations

from pathlib import Path

from tunefarm.address import public
from tunefarm.errors import UserError


def fetch(uri: str, folder: Path, registry: str = "") -> Path:
    """Downloads the pack of a model version.

    Args:
        uri: `models:/NAME@ALIAS` or `models:/NAME/VERSION`.
        folder: where to put it.
        registry: tracking URI of the registry; empty for the one that MLflow is set up with.

    Returns:
        The folder that then holds the pack.

    Raises:
        UserError: mlflow is not installed, there is no such version, or the registry does not answer.
    """
    try:
        import mlflow
    except ModuleNotFoundError:
        raise UserError(f"{uri}: mlflow is not installed", hint="pip install mlflow-skinny") from None
    try:
        source = _find(uri, registry) if registry else uri
        return Path(
            mlflow.artifacts.download_artifacts(
                artifact_uri=source, dst_path=str(folder), tracking_uri=registry or None
            )
        )
    except (mlflow.exceptions.MlflowException, OSError) as error:
        first = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        # MLflow names the address that it asked, with what is secret in it.
        raise UserError(f"{uri}: {public(first)}", hint="is MLFLOW_TRACKING_URI set, and the version there?") from None


def _find(uri: str, registry: str) -> str:
    """Where the artifacts of a model version are. MLflow itself looks into its own registry, whatever it is told."""
    from mlflow import MlflowClient

    client = MlflowClient(tracking_uri=registry, registry_uri=registry)
    model = uri.partition(":")[2].lstrip("/")
    name, at, alias = model.rpartition("@")
    if at:
        version = client.get_model_version_by_alias(name, alias).version
    else:
        name, _, version = model.rpartition("/")
    return str(client.get_model_version_download_uri(name, version))
