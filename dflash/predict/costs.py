"""Costs files: the terms that `dflash calibrate` measured, and of which target, drafter and device they hold.

A costs file stands in for the terms of the `simulation` section (`simulation.costs=FILE`). It is YAML, made to be read:

    format: 1
    about: {target: ..., device: ..., engine: ray, drafter: {...}, runs: [...]}
    cores: 2
    noise: 0.08
    terms: {target_fixed: {value: 0.004, low: 0.003, high: 0.005, known: true}, ...}

`value`, `low` and `high` are seconds (bytes/s for copy_bytes_per_second); a term with `known: false` couldn't be told from the others
by the runs at hand, see `calibration`.
"""

from __future__ import annotations

import platform
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from dflash.config import RunConfig
from dflash.errors import RefusedInput
from dflash.pipeline.engines.simulated import CostModel
from dflash.runs.folder import write_text

TERMS = tuple(field.name for field in fields(CostModel) if field.name not in ("noise", "drafters", "reads_features"))
RECORD = "the config's own terms"
UNKNOWN_EVALUATION = CostModel.evaluation_share
"""Taken where no run has told: of three passes over the weights, forward and twice as much backward, one."""


class Term(BaseModel):
    """One term with its 95% interval; `known` is false when the runs couldn't tell it from the others."""

    model_config = ConfigDict(extra="forbid", frozen=True)
    value: float = Field(ge=0)
    low: float = Field(ge=0)
    high: float = Field(ge=0)
    known: bool = True


class About(BaseModel):
    """What the costs were measured on."""

    model_config = ConfigDict(extra="forbid", frozen=True)
    target: str
    device: str
    engine: str = "ray"
    drafter: dict[str, Any]
    runs: list[str]


class CostsFile(BaseModel):
    """A whole costs file."""

    model_config = ConfigDict(extra="forbid", frozen=True)
    format: int = Field(1, ge=1, le=1)
    about: About
    cores: int = Field(0, ge=0)
    noise: float = Field(0.0, ge=0, le=1)
    terms: dict[str, Term]

    def model(self) -> CostModel:
        """The terms as a cost model; see `cost_model` on a term that isn't there."""
        return cost_model({name: term.value for name, term in self.terms.items()}, self.noise)


@dataclass(frozen=True)
class ResolvedCosts:
    """The costs of a simulation: the model, the cores that workers share, in words where they are from, and what to warn of."""

    model: CostModel
    cores: int
    source: str
    warnings: tuple[str, ...] = ()


def resolve_costs(config: RunConfig) -> ResolvedCosts:
    """The costs a config asks for: its costs file, or the terms of its `simulation` section.

    Raises:
        RefusedInput: the costs file can't be used.
    """
    simulation, reads_features = config.simulation, config.target.features == "cached"
    if simulation.costs is None:
        values = {name: getattr(simulation, name) for name in TERMS}
        model = replace(cost_model(values, simulation.noise), reads_features=reads_features)
        return ResolvedCosts(model, simulation.cores, RECORD)
    file = read_costs(simulation.costs)
    warnings = mismatches(file.about, config, simulation.costs)
    if config.batching.strategy == "packed" and "target_per_packed_token" not in file.terms:
        warnings.append(
            f"{simulation.costs} was measured on padded batches alone; packed ones may cost more: calibrate on such a run too"
        )
    if reads_features and "target_read_per_token" not in file.terms:
        warnings.append(
            f"{simulation.costs} was measured on live features alone; reading counts as free: calibrate on a cached run too"
        )
    model = replace(file.model(), reads_features=reads_features)
    return ResolvedCosts(model, simulation.cores or file.cores, simulation.costs, tuple(warnings))


def cost_model(terms: dict[str, float], noise: float) -> CostModel:
    """The cost model with these terms; one that isn't named is 0, but for the share that evaluation takes, which is a third."""
    values: dict[str, Any] = {"evaluation_share": UNKNOWN_EVALUATION, **terms}
    values = {name: values.get(name, 0.0) for name in TERMS}
    return CostModel(**values, noise=noise)


def read_costs(path: str | Path) -> CostsFile:
    """Read a costs file.

    Raises:
        RefusedInput: it is missing, not YAML, or holds an unknown term or a bad value.
    """
    place = Path(path)
    try:
        tree = yaml.safe_load(place.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise RefusedInput(
            f"{place}: can't be read as a costs file ({error}); `dflash calibrate RUN --out {place}` writes one"
        ) from error
    try:
        file = CostsFile.model_validate(tree)
    except ValidationError as error:
        fault = error.errors()[0]
        key = ".".join(map(str, fault["loc"])) or "the file"
        raise RefusedInput(f"{place}: {key}: {fault['msg']}; `dflash calibrate RUN --out {place}` writes a whole one") from error
    unknown = sorted(set(file.terms) - set(TERMS))
    if unknown:
        raise RefusedInput(f"{place}: terms.{unknown[0]} is no term; the terms are {', '.join(TERMS)}")
    return file


def write_costs(path: str | Path, file: CostsFile) -> None:
    """Write a costs file, whole or not at all.

    Raises:
        RunFailed: it can't be written.
    """
    write_text(Path(path), yaml.safe_dump(file.model_dump(mode="json"), sort_keys=False))


def drafter_summary(config: RunConfig) -> dict[str, Any]:
    """What the drafter's terms depend on, besides what they are multiplied by."""
    drafter = config.drafter
    objectives = "+".join(sorted(name for name, weight in drafter.loss.items() if weight))
    return {
        "layers": drafter.layers,
        "block_size": drafter.block_size,
        "precision": drafter.precision,
        "compile": drafter.compile,
        "loss": objectives,
    }


def device_name(device: str, machine: dict[str, Any] | None = None) -> str:
    """A device in words: `cpu (2 cores, x86_64)`, or the GPU's name; `machine` is a manifest's, None: this machine."""
    gpus = (machine or {}).get("gpus") or []
    if device != "cpu" and gpus:
        return str(gpus[0]["name"])
    cpus = (machine or {}).get("cpus")
    return f"cpu ({f'{cpus} cores, ' if cpus else ''}{platform.machine()})"


def mismatches(about: About, config: RunConfig, place: str) -> list[str]:
    """Where a costs file was measured on something else than the config runs; each names both."""
    found = []
    if about.target != config.target.path:
        found.append(f"{place} was measured with the target {about.target}, the config has {config.target.path}")
    drafter = drafter_summary(config)
    known = {"loss": "cross_entropy", **about.drafter}  # files from before there were others don't name it
    for key, here in drafter.items():
        there = known.get(key, here)
        if there != here:
            found.append(f"{place} was measured with drafter.{key}={there}, the config has {here}")
    measured_on_cpu, runs_on = about.device.startswith("cpu"), config.pipeline.device
    if (runs_on == "cpu") != measured_on_cpu and runs_on != "auto":
        found.append(f"{place} was measured on {about.device}, the config has pipeline.device={runs_on}")
    engine = config.pipeline.engine
    if engine != "simulated" and engine != about.engine:
        found.append(
            f"{place} was measured on the {about.engine} engine, the config has pipeline.engine={engine}: on a CPU jobs that run alone, as "
            f"inline ones do, take up to a fifth less time than jobs side by side; calibrate on a run of the {engine} engine"
        )
    return found
