"""The field record's config, and runs on a simulated machine."""

from pathlib import Path

import pytest

from dflash.config import build_config, load_config

FIELD = Path(__file__).parents[2] / "configs" / "field-record.yaml"


@pytest.fixture
def field():
    """The field record's config with settings changed: `field("batching.strategy=sorted")`."""
    return lambda *sets: load_config(FIELD, list(sets))


@pytest.fixture
def small():
    """A small run on lengths that are drawn: quick to simulate whole."""

    def build(*sets):
        tree = {
            "data": {"path": "none"},
            "target": {"path": "none"},
            "batching": {"token_budget": 4096},
            "pipeline": {"engine": "simulated", "targets": 2, "drafters": 1},
            "optim": {"accumulate": 4, "epochs": 2},
            "simulation": {
                "lengths": "lognormal",
                "samples": 800,
                "median_length": 200,
                "longest": 2048,
                "shortest": 8,
                "noise": 0.1,
            },
        }
        return build_config(tree, list(sets))

    return build
