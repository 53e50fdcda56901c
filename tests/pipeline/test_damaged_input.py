"""Whole runs that meet a damaged checkpoint or another target when they are resumed: gone on from the one before, or refused by name."""

import json
import shutil

import pytest
import torch
from safetensors.torch import load_file, save_file

from dflash.errors import RefusedInput
from dflash.pipeline.checkpoints import checksum
from dflash.pipeline.train import drive_run
from dflash.runs.folder import change_config, create_run, read_json
from dflash.targets import shipped_target
from dflash.telemetry.reader import read_events
from tests.model.tiny import save_target
from tests.pipeline.recount import recount


@pytest.fixture
def stopped(tmp_path, small_config):
    """A run that was stopped after four steps, with a checkpoint of each of the last three."""
    run = create_run(tmp_path / "runs", "run", small_config("optim.max_steps=4", "checkpoint.every=1", "optim.epochs=2"))
    drive_run(run, lambda line: None)
    change_config(run, ["optim.max_steps=null"])
    return run


def checkpoints(run):
    return sorted(run.checkpoints.glob("step-*"))


def cut_short(path):
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


@pytest.mark.parametrize("damaged", [1, 2])
@pytest.mark.parametrize("file", ["model.safetensors", "optimizer.safetensors", "state.json"])
def test_a_checkpoint_cut_short_is_passed_over_and_said_and_no_sample_is_lost(stopped, file, damaged):
    for folder in checkpoints(stopped)[-damaged:]:
        cut_short(folder / file)
    lines = []
    assert drive_run(stopped, lines.append).state == "finished"
    assert read_events(stopped.events, "run_started")[-1]["step"] == 4 - damaged
    told = [line for line in lines if f"{checkpoints(stopped)[-1].parent}" in line and "passed over" in line]
    assert len(told) >= damaged
    counts = recount(stopped)
    assert set(counts.values()) == {1}
    assert len(counts) == 2 * 52


def test_when_all_are_cut_short_the_run_is_refused_and_nothing_is_overwritten(stopped):
    for folder in checkpoints(stopped):
        cut_short(folder / "model.safetensors")
    with pytest.raises(RefusedInput, match="none of 3 checkpoints is whole"):
        drive_run(stopped, lambda line: None)
    assert [folder.name for folder in checkpoints(stopped)] == ["step-00000002", "step-00000003", "step-00000004"]


def change_tensors(folder, change):
    """Alter weights and put their new checksum down, as a tool would that writes checkpoints of its own."""
    place = folder / "model.safetensors"
    tensors = load_file(place)
    change(tensors)
    save_file(tensors, place)
    state = read_json(folder / "state.json")
    state["files"]["model.safetensors"] = checksum(place)
    (folder / "state.json").write_text(json.dumps(state))


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda tensors: tensors.pop("fc.weight"), r"missing: fc\.weight"),
        (lambda tensors: tensors.update({"lm_head.weight": torch.zeros(3)}), r"unknown: lm_head\.weight"),
        (lambda tensors: tensors.update({"norm.weight": torch.zeros(5)}), r"misshapen: norm\.weight \(5,\) instead of \(128,\)"),
    ],
)
def test_tensors_that_do_not_fit_are_named_and_an_earlier_checkpoint_is_the_way_out(stopped, change, said):
    newest = checkpoints(stopped)[-1]
    change_tensors(newest, change)
    with pytest.raises(RefusedInput, match=rf"step-00000004/model\.safetensors: doesn't fit this drafter \({said}\)"):
        drive_run(stopped, lambda line: None)
    assert stopped.state() == "failed"
    shutil.rmtree(newest)
    assert drive_run(stopped, lambda line: None).state == "finished"
    assert set(recount(stopped).values()) == {1}


def with_the_same_tokenizer(folder):
    for file in ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja"):
        shutil.copy(shipped_target("qwen3-tiny") / file, folder)
    return folder


def test_a_target_of_another_hidden_size_is_refused_by_that_name(stopped, tmp_path):
    other = with_the_same_tokenizer(save_target(tmp_path / "other", "qwen3", vocab_size=2048, num_hidden_layers=6, hidden_size=64))
    change_config(stopped, [f"target.path={other}"])
    with pytest.raises(RefusedInput, match=r"belongs to another setting \(.*drafter\.hidden_size: checkpoint 128, now 64;"):
        drive_run(stopped, lambda line: None)


@pytest.mark.parametrize("engine", ["inline", pytest.param("ray", marks=[pytest.mark.slow, pytest.mark.timeout(600)])])
def test_a_target_whose_weights_are_of_another_size_than_it_says_is_refused(tmp_path, small_config, engine):
    target = shutil.copytree(shipped_target("qwen3-tiny"), tmp_path / "target")
    config = json.loads((target / "config.json").read_text())
    (target / "config.json").write_text(json.dumps({**config, "hidden_size": 64}))
    run = create_run(tmp_path, "run", small_config(f"target.path={target}", f"pipeline.engine={engine}"))
    with pytest.raises(RefusedInput, match=str(target)):
        drive_run(run, lambda line: None)
    assert run.state() == "failed"
    assert str(target) in run.exit_record()["reason"]


def test_a_mask_token_that_text_uses_is_refused(tmp_path, small_config):
    run = create_run(tmp_path, "run", small_config("drafter.mask_token_id=300"))
    with pytest.raises(RefusedInput, match=r"drafter\.mask_token_id=300 is .*which the tokenizer in .* uses for text"):
        drive_run(run, lambda line: None)


@pytest.mark.parametrize("tied", [True, False])
def test_targets_with_and_without_a_head_of_their_own_train(tmp_path, small_config, tied):
    sizes = {"vocab_size": 2048, "num_hidden_layers": 6, "hidden_size": 64, "tie_word_embeddings": tied}
    target = with_the_same_tokenizer(save_target(tmp_path / "target", "qwen3", **sizes))
    run = create_run(tmp_path, "run", small_config(f"target.path={target}", "optim.max_steps=2"))
    assert drive_run(run, lambda line: None).state == "finished"


def test_a_target_without_the_head_it_speaks_of_is_refused(tmp_path, small_config):
    sizes = {"vocab_size": 2048, "num_hidden_layers": 6, "hidden_size": 64, "tie_word_embeddings": False}
    target = with_the_same_tokenizer(save_target(tmp_path / "target", "qwen3", **sizes))
    tensors = load_file(target / "model.safetensors")
    del tensors["lm_head.weight"]
    save_file(tensors, target / "model.safetensors", {"format": "pt"})
    run = create_run(tmp_path, "run", small_config(f"target.path={target}"))
    with pytest.raises(RefusedInput, match=r"no lm_head\.weight.*tie_word_embeddings true"):
        drive_run(run, lambda line: None)
