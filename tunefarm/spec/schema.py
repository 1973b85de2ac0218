"""JSON Schema of experiment files, made from the same declarations that read them."""

from __future__ import annotations

import json
from typing import Any

from tunefarm.spec.experiment import NEEDED, Experiment
from tunefarm.spec.grammar import section
from tunefarm.spec.workload import REPLAYED_SCHEMA


def experiment_schema() -> dict[str, Any]:
    """The schema (2020-12) of an experiment file, for editors.

    It knows shapes, types and words. Names are checked by `resolve`, because only the workload knows them.
    """
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "tunefarm experiment",
        **section(Experiment).schema,
        # Recordings bring their problems and devices along.
        "if": {"properties": {"workload": REPLAYED_SCHEMA}},
        "else": {"required": list(NEEDED)},
    }


if __name__ == "__main__":
    print(json.dumps(experiment_schema(), indent=1))
