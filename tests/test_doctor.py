from __future__ import annotations

import json
import shutil
import subprocess
import sys
import time
from collections import namedtuple
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from dflash import doctor
from dflash.config import RunConfig
from dflash.data.dataset import TokenDataset
from dflash.data.options import PrepareOptions
from dflash.data.prepare import prepare
from dflash.doctor import Examination, examine
from dflash.errors import RefusedInput
from dflash.machine import Gpu
from dflash.model.facts import resolve_target, target_facts
from dflash.predict.workload import feature_bytes_per_token

GIB = 2**30
Usage = namedtuple("Usage", "total used free")
BLACKWELL = [Gpu(index, "RTX PRO 6000", 96 * GIB) for index in range(8)]


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("data")
    rows = [{"input_ids": list(range(4, 4 + 50 + n)), "loss_mask": [0] * 10 + [1] * (40 + n)} for n in range(20)]
    (folder / "rows.jsonl").write_text("\n".join(json.dumps(row) for row in rows))
    prepare([folder / "rows.jsonl"], "qwen3-tiny", folder / "out", options=PrepareOptions(workers=1))
    return folder / "out"


@pytest.fixture
def on_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "find_gpus", lambda: BLACKWELL)
    monkeypatch.setattr(doctor, "package_version", lambda package: "2.13.0")


def config(folder: Path, /, **sections: dict[str, Any]) -> RunConfig:
    tree: dict[str, Any] = {
        "data": {"path": str(folder)},
        "target": {"path": "qwen3-tiny"},
        "drafter": {"layers": 2, "block_size": 8},
        "batching": {"token_budget": 512},
        "pipeline": {"device": "cpu"},
    }
    return RunConfig.model_validate(
        {section: {**tree.get(section, {}), **sections.get(section, {})} for section in {*tree, *sections}}
    )


def needs(found: Examination, what: str) -> int:
    return next(need.needs_bytes or 0 for need in found.needs if need.what == what)


def test_a_run_that_fits_has_no_faults_and_every_figure(data: Path, tmp_path: Path) -> None:
    found = examine(config(data), runs=tmp_path / "not" / "yet")
    assert found.faults == []
    found.refuse_faults()
    assert needs(found, "features of the largest batch") == 512 * 2 * 128 * 2
    assert needs(found, "pool when full") == 20 * needs(found, "features of the largest batch")
    assert needs(found, "drafter: optimiser") == 2 * needs(found, "drafter: weights")
    told = json.loads(json.dumps(found.as_dict()))
    assert told["fits"] is True
    assert told["device"] == "cpu"
    assert all(len(line) == 4 for line in found.lines())


def test_the_state_an_objective_needs_is_counted_wherever_features_are(data: Path, tmp_path: Path) -> None:
    plain = examine(config(data), runs=tmp_path)
    kl = examine(config(data, drafter={"loss": "kl"}), runs=tmp_path)
    assert needs(kl, "features of the largest batch") * 2 == needs(plain, "features of the largest batch") * 3
    assert needs(kl, "target: weights") > needs(plain, "target: weights")  # all layers, up to the last
    assert feature_bytes_per_token(config(data, drafter={"loss": "acceptance"})) == 3 * 128 * 2
    assert any("the target's last state for drafter.loss" in note for *_, note in kl.lines())


def test_the_best_checkpoint_and_the_target_that_decodes_are_counted(data: Path, tmp_path: Path) -> None:
    plain = examine(config(data, checkpoint={"best": False}), runs=tmp_path)
    found = examine(config(data, data={"holdout": 2}, evaluation={"decode_every": 5}), runs=tmp_path)
    weights, whole = needs(found, "drafter: weights"), needs(found, "drafter 0: the whole target")
    assert needs(found, "disk for checkpoints") - needs(plain, "disk for checkpoints") == 2 * weights
    assert (
        needs(found, "memory of this machine") - needs(plain, "memory of this machine") == whole > needs(found, "target: weights")
    )


def test_it_loads_no_torch_and_takes_about_a_second(data: Path) -> None:
    code = (
        "import sys, pathlib; from dflash.config import load_config; from dflash.doctor import examine\n"
        "examine(load_config(sys.argv[1], ['data.path=' + sys.argv[2]])); sys.exit('torch' in sys.modules)"
    )
    started = time.process_time()
    subprocess.run([sys.executable, "-c", code, "configs/demo-cpu.yaml", str(data)], check=True, timeout=60)
    assert time.process_time() - started < 5


def test_what_cannot_fit_is_refused_with_by_how_much_and_what_to_change(data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "memory_limit_bytes", lambda: 300 * 2**20)
    found = examine(config(data, pipeline={"engine": "ray", "targets": 5, "drafters": 3}))
    (fault,) = (fault for fault in found.faults if fault.startswith("memory of this machine"))
    assert "GiB needed, 300.0 MiB there" in fault
    assert "too little; lower pool.capacity_bytes, pipeline.targets" in fault
    with pytest.raises(RefusedInput, match="memory of this machine"):
        found.refuse_faults()


@pytest.mark.parametrize(
    ("sections", "said"),
    [
        ({"pool": {"capacity_bytes": 1000}}, r"pool\.capacity_bytes=1,000 is .* smaller than .* raise it to 262144"),
        ({"batching": {"token_budget": 40}}, r"token_budget=40 is 29 below the longest row \(69 tokens\); raise it to 69"),
        ({"data": {"holdout": 20}}, r"data\.holdout=20 leaves nothing of 20 samples"),
        ({"data": {"path": "nowhere"}}, r"nowhere: no such folder"),
        ({"target": {"path": "nowhere"}}, r"target nowhere: .*no such folder"),
        ({"target": {"attention": "flash_attention_2"}}, r"target\.attention=flash_attention_2 needs a GPU"),
        ({"drafter": {"attention": "flex_attention"}}, r"drafter\.attention=flex_attention can't train on a CPU"),
        ({"drafter": {"target_layer_ids": [0, 6]}}, r"layers 0 \.\. 5, \[6\]"),
        (
            {"drafter": {"block_size": 250}},
            r"block_size=250 is longer than any answer \(\d+ supervised tokens .* at most\).*lower it to",
        ),
        ({"drafter": {"mask_token_id": 9}}, r"mask_token_id=9 is .* uses for text"),
        ({"drafter": {"layers": 2, "intermediate_size": 10**10}}, r"disk for checkpoints: .* too little; make room"),
    ],
)
def test_each_fault_names_the_setting_and_the_remedy(data: Path, sections: dict[str, Any], said: str) -> None:
    found = examine(config(data, **sections))
    with pytest.raises(RefusedInput, match=said):
        found.refuse_faults()


def test_data_with_ids_the_target_does_not_know_is_refused(data: Path) -> None:
    narrow = replace(target_facts("qwen3-tiny"), vocab_size=60)
    with pytest.raises(RefusedInput, match="knows only 60 tokens"):
        doctor._examine_data(TokenDataset.open(data), config(data), narrow)


@pytest.mark.usefixtures("on_gpus")
def test_a_gpu_run_needs_a_gpu_a_worker(data: Path) -> None:
    gpus = {"engine": "ray", "device": "cuda", "drafters": 3}
    assert examine(config(data, pipeline={**gpus, "targets": 5})).faults == []
    found = examine(config(data, pipeline={**gpus, "targets": 7}))
    assert any("7 targets and 3 drafters need 10 GPUs, there are 8, 2 too few" in fault for fault in found.faults)
    found = examine(config(data, pipeline={"device": "auto"}, drafter={"layers": 2, "intermediate_size": 10**8}))
    assert found.device == "cuda"
    assert any(fault.startswith("GPU memory of target and drafter") for fault in found.faults)


@pytest.mark.usefixtures("on_gpus")
def test_an_estimate_alone_only_warns(data: Path) -> None:
    found = examine(
        config(data, pipeline={"device": "cuda"}, drafter={"layers": 2, "intermediate_size": 5 * 10**6, "positions_at_once": 2**14})
    )
    assert not any("GPU memory" in fault for fault in found.faults)
    assert any(warning.startswith("GPU memory of target and drafter: about") for warning in found.warnings)


def test_a_cpu_build_of_torch_is_told_from_its_version(data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "find_gpus", lambda: BLACKWELL)
    monkeypatch.setattr(doctor, "package_version", lambda package: "2.13.0+cpu")
    assert any("CPU build" in fault for fault in examine(config(data, pipeline={"device": "cuda"})).faults)
    found = examine(config(data, pipeline={"device": "auto"}))
    assert (found.device, found.faults) == ("cpu", [])
    assert any("torch is a CPU build" in warning for warning in found.warnings)


def test_too_little_shared_memory_is_a_fault_and_a_pool_that_spills_a_warning(data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ray = config(data, pipeline={"engine": "ray"})
    monkeypatch.setattr(doctor.shutil, "disk_usage", lambda path: Usage(64 * 2**20, 0, 64 * 2**20))
    assert any("shared memory for Ray's object store" in fault and "--shm-size" in fault for fault in examine(ray).faults)
    wide = config(data, pipeline={"engine": "ray"}, pool={"capacity_items": 2000})
    monkeypatch.setattr(doctor.shutil, "disk_usage", lambda path: Usage(400 * 2**20, 0, 400 * 2**20))
    found = examine(wide)
    assert not any("shared memory" in fault for fault in found.faults)
    assert any("spill to disk" in warning for warning in found.warnings)


def test_checkpoints_a_run_has_already_count_as_room(data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor.shutil, "disk_usage", lambda path: Usage(0, 0, 1000))
    (tmp_path / "step-00000001").mkdir()
    (tmp_path / "step-00000001" / "model.safetensors").write_bytes(bytes(10**6))
    for checkpoints, room in ((None, 1000), (tmp_path, 1000 + 10**6), (tmp_path / "none yet", 1000)):
        found = examine(config(data), checkpoints=checkpoints)
        assert next(need.has_bytes for need in found.needs if need.what == "disk for checkpoints") == room


def test_a_target_that_is_not_whole_is_said_once(data: Path, tmp_path: Path) -> None:
    folder = shutil.copytree(resolve_target("qwen3-tiny"), tmp_path / "target")
    weights = (folder / "model.safetensors").read_bytes()
    (folder / "model.safetensors").write_bytes(weights[:-1])
    (fault,) = examine(config(data, target={"path": str(folder)})).faults
    assert "model.safetensors: cut short" in fault


def test_a_simulated_run_needs_nothing(tmp_path: Path) -> None:
    assert examine(config(tmp_path / "none", pipeline={"engine": "simulated"})).faults == []


def test_the_command_examines_a_target_alone() -> None:
    from dflash.cli import app

    done = CliRunner().invoke(app, ["doctor", "--target", "qwen3-tiny", "--json"])
    assert done.exit_code == 0
    report = json.loads(done.stdout.splitlines()[-1])
    assert report["works"] is True
    assert {aspect["what"]: aspect["works"] for aspect in report["aspects"]}["features"] is True
    assert "give a run's YAML file, or --target" in str(CliRunner().invoke(app, ["doctor"]).exception)
