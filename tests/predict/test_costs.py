"""Costs files: written, read, refused, and held against the config they are used with."""

import pytest
import yaml

from dflash.errors import RefusedInput
from dflash.predict.costs import About, CostsFile, Term, drafter_summary, read_costs, resolve_costs, write_costs


def costs_file(config, **changes):
    about = About(target=config.target.path, device="cpu (2 cores, x86_64)", drafter=drafter_summary(config), runs=["one"])
    terms = {"target_per_padded_token": Term(value=1e-4, low=9e-5, high=1.1e-4)}
    return CostsFile(**{"about": about, "cores": 2, "noise": 0.05, "terms": terms, **changes})


def test_a_costs_file_comes_back_as_written_and_stands_in_for_the_terms(small, tmp_path):
    path = tmp_path / "costs.yaml"
    file = costs_file(small())
    write_costs(path, file)
    assert read_costs(path) == file
    found = resolve_costs(small(f"simulation.costs={path}", "simulation.drafter_per_token=9"))
    assert (found.model.target_per_padded_token, found.model.drafter_per_token, found.model.noise) == (1e-4, 0.0, 0.05)
    assert (found.cores, found.source, found.warnings) == (2, str(path), ())
    assert resolve_costs(small(f"simulation.costs={path}", "simulation.cores=7")).cores == 7


@pytest.mark.parametrize(
    ("settings", "both"),
    [
        (("target.path=other",), ("target none", "config has other")),
        (("drafter.layers=9",), ("drafter.layers=5", "config has 9")),
        (("drafter.loss={kl: 0.5, dpace: 1}",), ("drafter.loss=cross_entropy", "config has dpace+kl")),
        (("pipeline.engine=inline",), ("on the ray engine", "pipeline.engine=inline")),
        (("pipeline.device=cuda",), ("on cpu (2 cores, x86_64)", "pipeline.device=cuda")),
        (("batching.strategy=packed",), ("padded batches alone", "calibrate on such a run")),
    ],
)
def test_costs_of_another_model_or_device_are_warned_of_with_both_named(small, tmp_path, settings, both):
    path = tmp_path / "costs.yaml"
    write_costs(path, costs_file(small()))
    (warning,) = resolve_costs(small(f"simulation.costs={path}", *settings)).warnings
    assert all(part in warning for part in both)


def test_costs_from_before_there_were_objectives_are_those_of_cross_entropy(small, tmp_path):
    path = tmp_path / "costs.yaml"
    tree = costs_file(small()).model_dump(mode="json")
    del tree["about"]["drafter"]["loss"]
    path.write_text(yaml.safe_dump(tree))
    assert resolve_costs(small(f"simulation.costs={path}")).warnings == ()
    assert "config has kl" in resolve_costs(small(f"simulation.costs={path}", "drafter.loss=kl")).warnings[0]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("{", "can't be read"),
        ("[1]", "the file"),
        ("{format: 2}", "format"),
        (None, "can't be read"),
    ],
)
def test_a_file_that_is_none_is_refused_with_the_remedy(tmp_path, text, words):
    path = tmp_path / "costs.yaml"
    if text is not None:
        path.write_text(text)
    with pytest.raises(RefusedInput, match=f"(?s){words}.*dflash calibrate RUN"):
        read_costs(path)


def test_an_unknown_or_negative_term_is_refused_by_name(small, tmp_path):
    path = tmp_path / "costs.yaml"
    tree = costs_file(small()).model_dump(mode="json")
    path.write_text(yaml.safe_dump({**tree, "terms": {"target_magic": {"value": 1, "low": 1, "high": 1}}}))
    with pytest.raises(RefusedInput, match=r"terms\.target_magic is no term"):
        read_costs(path)
    path.write_text(yaml.safe_dump({**tree, "terms": {"target_fixed": {"value": -1, "low": 0, "high": 1}}}))
    with pytest.raises(RefusedInput, match=r"terms\.target_fixed\.value"):
        read_costs(path)
