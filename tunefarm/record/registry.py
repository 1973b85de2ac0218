"""Packs in MLflow's registry: a model for each workload, a version for each pack, and who of them is in use.

`candidate` is the pack that was swept last, `champion` the one that jobs load: `models:/tunefarm.softmax@champion`. The
registry is an index: a version is found by its pack's digest, and a pack that is registered twice is one version.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tunefarm.address import public
from tunefarm.errors import InfrastructureError, UserError
from tunefarm.pack_reader import load_pack
from tunefarm.record.store import connect

PREFIX = "tunefarm."
CANDIDATE, CHAMPION = "candidate", "champion"

_DIGEST = "tunefarm.pack"


def register(client: Any, name: str, path: Path, run: Any, tags: Mapping[str, str]) -> str:
    """Makes a pack the candidate of a model; the model and the version are made where there is none.

    Args:
        client: MLflow's.
        name: of the model.
        path: of the pack; it is an artifact of the run already.
        run: the sweep's.
        tags: of a new version.

    Returns:
        The version.
    """
    from mlflow.exceptions import MlflowException

    pack = load_pack(path)
    try:
        client.create_registered_model(name, description="Config packs of tunefarm, one a version.")
    except MlflowException as e:
        if e.error_code != "RESOURCE_ALREADY_EXISTS":
            raise
    known = client.search_model_versions(f"name = '{name}' and tags.`{_DIGEST}` = '{pack.digest}'")
    if known:
        version = str(known[0].version)
    else:
        about = {_DIGEST: pack.digest, "tunefarm.source": ", ".join(pack.sources), "tunefarm.rows": str(pack.num_rows)}
        source = f"{run.info.artifact_uri}/{artifact_folder(pack.digest)}"
        version = str(client.create_model_version(name, source, run.info.run_id, tags={**about, **tags}).version)
    client.set_registered_model_alias(name, CANDIDATE, version)
    return version


def artifact_folder(digest: str) -> str:
    """Where a run keeps a pack: never where it keeps another one, of which an earlier version may be made."""
    return f"packs/{digest[:16]}"


class Registry:
    """Who is who among the packs of a workload.

    Args:
        uri: tracking URI.
        name: the workload's, with or without `tunefarm.` before it.
    """

    def __init__(self, uri: str, name: str) -> None:
        self.name = name if name.startswith(PREFIX) else PREFIX + name
        self._client = connect(uri)

    def find(self, alias: str) -> str:
        """The version that has an alias, or empty.

        Raises:
            UserError: no pack was ever registered under this name.
            InfrastructureError: the registry does not answer.
        """
        from mlflow.exceptions import MlflowException

        try:
            aliases = self._client.get_registered_model(self.name).aliases
        except MlflowException as e:
            if e.error_code == "RESOURCE_DOES_NOT_EXIST":
                raise UserError(
                    f"MLflow's registry has no model {self.name}",
                    hint="a sweep registers its pack with `tracking: {register: on}` in its experiment",
                ) from None
            if e.error_code == "INVALID_PARAMETER_VALUE":
                raise UserError(
                    f"{self.name!r} cannot be a model's name in MLflow's registry",
                    hint="name a workload, such as softmax",
                ) from None
            raise _unanswered(e) from None
        return str(aliases.get(alias, ""))

    def crown(self, version: str) -> None:
        """Makes a version the champion.

        Raises:
            InfrastructureError: the registry does not answer.
        """
        from mlflow.exceptions import MlflowException

        try:
            self._client.set_registered_model_alias(self.name, CHAMPION, version)
        except MlflowException as e:
            raise _unanswered(e) from None


def _unanswered(error: Exception) -> InfrastructureError:
    # MLflow names the address that it asked, with what is secret in it.
    return InfrastructureError(f"MLflow's registry: {public(str(error).splitlines()[0])}")
