"""`drafter.init_from` in whole runs: found by name, told in events and manifest, and never done again by a resume."""

import json
import shutil

import pytest

from dflash.doctor import examine
from dflash.errors import RefusedInput
from dflash.model.facts import target_facts
from dflash.model.shape import DrafterShape
from dflash.pipeline.init_from import plan_warm_start
from dflash.pipeline.train import drive_run
from dflash.runs.folder import change_config, create_run
from dflash.telemetry.reader import read_events


@pytest.fixture(scope="module")
def runs(tmp_path_factory, token_folder):
    """A folder with one finished run, `source`."""
    from dflash.config import build_config

    config = build_config(
        {
            "data": {"path": str(token_folder), "holdout": 8},
            "target": {"path": "qwen3-tiny"},
            "drafter": {"layers": 1, "feature_layers": 2, "block_size": 4, "anchors": 4},
            "batching": {"token_budget": 400},
            "pipeline": {"device": "cpu", "threads": 1},
            "optim": {"accumulate": 3, "max_steps": 3},
        }
    )
    folder = tmp_path_factory.mktemp("runs")
    drive_run(create_run(folder, "source", config), lambda line: None)
    return folder


def test_a_run_starts_from_another_by_name_tells_it_and_a_resume_does_not_start_again(runs, small_config):
    lines = []
    changes = [
        "drafter.init_from=source",
        "drafter.layers=2",
        "drafter.feature_layers=2",
        "optim.max_steps=2",
        "evaluation.every=1",
    ]
    run = create_run(runs, "warm", small_config(*changes))
    drive_run(run, lines.append)
    source = read_events(runs / "source" / "events", "evaluation")
    first = read_events(run.events, "evaluation")[0]
    assert first["step"] == 0
    assert first["loss"] == pytest.approx(source[-1]["loss"], rel=1e-5)  # the second layer begins as the identity
    (event,) = read_events(run.events, "warm_started")
    assert event["layers"] == [2, 1]
    assert (
        run.manifest()["warm_start"]["silent"]
        == event["silent"]
        == ["layers.1.self_attn.o_proj.weight", "layers.1.mlp.down_proj.weight"]
    )
    assert any("14 of 25 tensors taken, 1 of 2 layers" in line for line in lines)

    change_config(run, ["optim.max_steps=3", "drafter.init_from=gone"])
    drive_run(run, lambda line: None)
    assert len(read_events(run.events, "warm_started")) == 1
    assert read_events(run.events, "run_started")[-1]["step"] == 2


def test_checkpoints_and_exports_are_found_and_what_is_not_a_drafter_is_refused(runs, small_config, tmp_path):
    config = small_config()
    shape = DrafterShape.resolve(config.drafter, target_facts("qwen3-tiny"))
    checkpoint = shutil.copytree(runs / "source/checkpoints/step-00000003", tmp_path / "runs/copy/checkpoints/step-00000003")

    def plan(named):
        return plan_warm_start(small_config(f"drafter.init_from={json.dumps(str(named))}"), shape, runs)

    assert plan(checkpoint).source == checkpoint
    assert plan("source").source == runs / "source/checkpoints/step-00000003"
    assert plan("target").from_target
    assert plan_warm_start(config, shape, runs) is None
    for named, said in (
        ("nowhere", "init_from=nowhere: neither a drafter's folder"),
        (tmp_path, "neither a drafter's folder"),
    ):
        with pytest.raises(RefusedInput, match=said):
            plan(named)
    (checkpoint / "model.safetensors").write_bytes(b"short")
    with pytest.raises(RefusedInput, match=r"model\.safetensors is cut short or altered; name another checkpoint"):
        plan(checkpoint)


def test_doctor_tells_what_would_be_taken(runs, small_config):
    found = examine(small_config("drafter.init_from=source"), runs=runs)
    assert any(line[0] == "drafter: warm start" and "14 of 14 tensors taken" in line[3] for line in found.lines())
    assert not examine(small_config("drafter.init_from=target"), runs=runs).faults
    assert "neither a drafter's folder" in examine(small_config("drafter.init_from=gone"), runs=runs).faults[0]
