"""The project's own files: they agree with each other, and the rooms keep to their arrows."""

import ast
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
import rattler
import yaml
from packaging.requirements import Requirement
from packaging.version import Version

from dflash.config import load_config

ROOT = Path(__file__).parent.parent
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
PINS = dict(line.split("==") for line in (ROOT / "constraints.txt").read_text().splitlines())


def normal(name):
    return re.sub(r"[-_.]+", "-", name).lower()


@pytest.mark.parametrize("config", sorted((ROOT / "configs").glob("*.yaml")), ids=lambda path: path.name)
def test_shipped_configs_load(config):
    load_config(config)


def test_the_records_topology_is_shipped():
    for name in ("qwen3.6-27b-8gpu.yaml", "qwen3.6-27b-8gpu-packed.yaml"):
        config = load_config(ROOT / "configs" / name)
        assert (config.pipeline.targets, config.pipeline.drafters, config.batching.token_budget) == (5, 3, 49_152)


def test_every_default_and_dev_package_has_a_lower_bound_and_an_exact_pin_that_meets_it():
    pins = {normal(name): Version(version) for name, version in PINS.items()}
    for text in PROJECT["dependencies"] + PROJECT["optional-dependencies"]["dev"]:
        requirement = Requirement(text)
        assert [each.operator for each in requirement.specifier] == [">="], text
        assert requirement.specifier.contains(pins[normal(requirement.name)]), text


def test_the_conda_environment_is_the_project():
    environment = yaml.safe_load((ROOT / "environment.yml").read_text())
    *conda, pip_section = environment["dependencies"]
    names = [rattler.MatchSpec(spec).name.normalized for spec in conda]
    assert names == ["python", "pip"]
    python = rattler.MatchSpec(conda[0]).version
    assert Version(str(python).rstrip(".*").lstrip("=")) >= Version(PROJECT["requires-python"].removeprefix(">="))
    assert pip_section["pip"] == ["--constraint constraints.txt", "torch", "--editable .[dev]"]


def test_no_cuda_package_is_needed_by_default():
    names = {normal(Requirement(text).name) for text in PROJECT["dependencies"] + PROJECT["optional-dependencies"]["dev"]}
    assert not names & {"flash-attn", "flash-linear-attention", "liger-kernel", "causal-conv1d", "triton"}


def test_no_process_of_ray_builds_a_grammar_when_it_starts():
    """jsonschema from 4.25 on does, through lark: a second for each of the twenty processes or so of a run on the ray engine."""
    program = "import sys, dflash.pipeline.engines.actors; sys.exit('lark' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0


@pytest.mark.parametrize(
    "module",
    ["dflash.config", "dflash.batching.plan", "dflash.batching.figures", "dflash.pool.policies", "dflash.pipeline.coordinator",
     "dflash.pipeline.engines.simulated", "dflash.telemetry.reader", "dflash.runs.folder", "dflash.runs.control",
     "dflash.data.dataset", "dflash.data.lengths", "dflash.predict", "dflash.analysis", "dflash.charts", "dflash.report",
     "dflash.importing", "dflash.doctor", "dflash.cli"],
)  # fmt: skip
def test_what_explores_and_explains_needs_no_torch(module):
    program = f"import sys, {module}; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0


def imports_of(path):
    tree = ast.parse(path.read_text())
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.module:
            yield node.module
        elif isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)


def room_imports(room):
    return {name for path in (ROOT / room).rglob("*.py") for name in imports_of(path)}


def test_the_engine_knows_nothing_of_the_workbench_and_no_widgets():
    assert not {name for name in room_imports("dflash") if name.split(".")[0] in ("workbench", "ipywidgets", "anywidget")}


@pytest.mark.parametrize(
    ("room", "above"),
    [
        ("dflash/batching", ("pool", "model", "pipeline", "runs", "analysis", "charts", "report", "predict", "serving")),
        ("dflash/pool", ("batching", "model", "pipeline", "runs", "analysis", "charts", "report", "predict", "serving")),
        ("dflash/data", ("batching", "pool", "model", "pipeline", "runs", "analysis", "charts", "report", "predict", "serving")),
        ("dflash/model", ("batching", "pool", "pipeline", "runs", "analysis", "charts", "report", "predict", "serving")),
        (
            "dflash/telemetry",
            ("batching", "pool", "model", "pipeline", "runs", "analysis", "charts", "report", "predict", "serving"),
        ),
        ("dflash/pipeline", ("analysis", "charts", "report", "predict", "serving")),
        ("dflash/analysis", ("charts", "report", "model")),
        ("dflash/charts", ("report", "model")),
    ],
)
def test_arrows_between_rooms_point_down(room, above):
    upward = {
        name
        for name in room_imports(room)
        if name.split(".")[0] == "dflash" and name.split(".")[1:2] and name.split(".")[1] in above
    }
    assert upward == set()


def test_files_can_be_held_by_a_reader():
    longest = {path: len(path.read_text().splitlines()) for room in ("dflash", "workbench") for path in (ROOT / room).rglob("*.py")}
    assert {str(path.relative_to(ROOT)): lines for path, lines in longest.items() if lines > 400} == {}


DISTRIBUTIONS = {"yaml": "pyyaml", "google": "protobuf"}


def test_every_imported_package_is_declared():
    declared = {normal(Requirement(text).name) for text in PROJECT["dependencies"]}
    optional = {
        normal(Requirement(text).name) for extra in ("flash", "cuda", "smollm") for text in PROJECT["optional-dependencies"][extra]
    }
    imported = {name.split(".")[0] for room in ("dflash", "workbench") for name in room_imports(room)}
    foreign = imported - set(sys.stdlib_module_names) - {"dflash", "workbench"}
    undeclared = {normal(DISTRIBUTIONS.get(name, name)) for name in foreign} - declared - optional
    assert undeclared == set()


def test_every_file_that_is_no_module_is_in_the_package_data():
    data = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]["package-data"]
    for package in ("dflash", "workbench"):
        files = subprocess.run(["git", "ls-files", package], cwd=ROOT, capture_output=True, text=True, check=True).stdout.split()
        shipped = {path for pattern in data[package] for path in (ROOT / package).glob(pattern)}
        assert [name for name in files if not name.endswith(".py") and ROOT / name not in shipped] == []
