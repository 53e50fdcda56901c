"""What `dflash doctor --target` says of a target, held against what then happens with it."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from dflash.errors import RefusedInput
from dflash.model.target_report import TargetReport, report_target


def notes(report: TargetReport) -> dict[str, tuple[bool | None, str]]:
    return {aspect.what: (aspect.works, aspect.note) for aspect in report.aspects}


def changed(folder: Path, to: Path, **settings: Any) -> Path:
    shutil.copytree(folder, to)
    config = json.loads((to / "config.json").read_text())
    (to / "config.json").write_text(json.dumps({**config, **settings}))
    return to


def test_all_of_a_shipped_target_works() -> None:
    report = report_target("qwen3-tiny", on_gpu=False)
    report.refuse_faults()
    said = notes(report)
    assert {what for what, (works, _) in said.items() if works} == {"weights", "features", "generate", "export", "mask token"}
    assert said["attention"] == (None, "sdpa")
    assert said["quantisation"] == (None, "none")
    assert said["logit cap"] == (None, "none")
    assert "not tried" in said["served by vLLM"][1]
    assert report.as_dict()["works"] is True
    json.dumps(report.as_dict())


def test_what_is_particular_to_a_family_is_told(target_folder) -> None:
    said = notes(report_target(target_folder("gemma2"), on_gpu=False))
    assert said["attention"][1] == "eager (gemma2 has no sdpa: it caps the attention scores)"
    assert said["logit cap"][1] == "2"
    assert said["embedding scale"][1] == "5.65685"
    assert "input_embedding_scale" in said["served by SGLang"][1]
    said = notes(report_target(target_folder("gpt_oss"), on_gpu=False))
    assert said["rope"][1] == "yarn, base 150000, factor 4"


def test_quantised_weights_stop_features_and_not_export(target_folder, tmp_path) -> None:
    folder = changed(target_folder("qwen3"), tmp_path / "t", quantization_config={"quant_method": "fp8"})
    said = notes(report_target(folder, on_gpu=False))
    assert said["features"][0] is said["generate"][0] is False
    assert "target.dequantise=true" in said["features"][1]
    assert said["weights"][0]
    with pytest.raises(RefusedInput, match=r"can't be used as it is:\n- .*quantised \(FP8"):
        report_target(folder, on_gpu=False).refuse_faults()
    assert notes(report_target(folder, on_gpu=False, dequantise=True))["features"][0]


def test_missing_weights_stop_everything_and_are_told_once(target_folder, tmp_path) -> None:
    folder = changed(target_folder("qwen3"), tmp_path / "t")
    (folder / "model.safetensors").unlink()
    report = report_target(folder, on_gpu=False)
    assert notes(report)["features"][0] is notes(report)["export"][0] is False
    assert len([fault for fault in report.faults if "no model.safetensors" in fault]) == 1


def test_a_family_only_its_own_code_builds_is_told(target_folder, tmp_path) -> None:
    folder = changed(target_folder("qwen3"), tmp_path / "t", model_type="own", auto_map={"AutoModelForCausalLM": "own.Model"})
    assert "target.trust_remote_code=true" in notes(report_target(folder, on_gpu=False))["features"][1]
