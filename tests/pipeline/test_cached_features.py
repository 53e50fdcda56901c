"""Whole runs with `target.features: cached`: the same weights as live, whoever filled the cache and whenever it was stopped."""

import json
import signal
import subprocess
import sys
import time
from collections import namedtuple

import numpy as np
import pytest

from dflash.config import dump_config
from dflash.data.dataset import TokenDataset
from dflash.doctor import examine
from dflash.errors import RefusedInput
from dflash.model import cache_facts
from dflash.model.cache_journal import RECORD
from dflash.model.target import FrozenTarget
from dflash.pipeline.filling import fill_cache
from dflash.pipeline.train import drive_run
from dflash.runs.folder import create_run
from dflash.telemetry.reader import read_events
from tests.pipeline.recount import recount
from tests.pipeline.test_ray import hit_when_trained
from tests.pipeline.test_train import stop_after, weights

Usage = namedtuple("Usage", "total used free")


@pytest.fixture
def computed(monkeypatch):
    """The samples that the target computes, in order."""
    samples, real = [], FrozenTarget.features

    def features(self, rows, *, packed):
        samples.extend(rows.sample_ids.tolist())
        return real(self, rows, packed=packed)

    monkeypatch.setattr(FrozenTarget, "features", features)
    return samples


def same(left, right):
    left, right = weights(left), weights(right)
    return left.keys() == right.keys() and all(np.array_equal(left[name], right[name]) for name in left)


def cached(tmp_path, small_config, *settings):
    return small_config("target.features=cached", f"target.cache={tmp_path / 'features'}", *settings)


def drive(tmp_path, name, config):
    run = create_run(tmp_path, name, config)
    assert drive_run(run, lambda line: None).state == "finished"
    return run


def test_bfloat16_features_read_give_the_weights_of_live_ones_to_the_bit(tmp_path, small_config, computed):
    live = drive(tmp_path, "live", small_config())
    computed.clear()
    filling = drive(tmp_path, "filling", cached(tmp_path, small_config))
    assert sorted(computed) == list(range(60))  # held-out ones were evaluated twice, and computed once
    computed.clear()
    reading = drive(tmp_path, "reading", cached(tmp_path, small_config, "batching.strategy=jittered", "pipeline.targets=3"))
    assert computed == []
    assert same(live, filling)
    assert same(live, reading)
    told = filling.manifest()["feature_cache"]
    assert (told["samples"], told["missing_bytes"], told["relative_rms_error"], told["cosine"]) == (60, 0, 0, 1)
    assert [event["samples"] for event in read_events(filling.events, "feature_cache")] == [0, 60]


@pytest.mark.parametrize("kept_as", ["bfloat16", "float8_e4m3"])
def test_a_cache_filled_beforehand_gives_the_weights_of_one_filled_while_training(tmp_path, small_config, computed, kept_as):
    whole = drive(tmp_path, "whole", cached(tmp_path / "a", small_config, "optim.epochs=2", f"target.cache_dtype={kept_as}"))
    assert sorted(computed) == list(range(60))
    before = cached(tmp_path / "b", small_config, "optim.epochs=2", f"target.cache_dtype={kept_as}")
    filled = fill_cache(before, progress=False, show=lambda line: None)
    assert (filled.samples, filled.computed_tokens) == (60, int(TokenDataset.open(before.data.path).lengths.sum()))
    assert (filled.relative_rms_error == 0) == (kept_as == "bfloat16")
    assert filled.relative_rms_error < 1 / 16
    assert fill_cache(before, progress=False, show=lambda line: None).computed_tokens == 0
    computed.clear()
    assert same(whole, drive(tmp_path, "before", before))
    assert computed == []


def test_a_run_stopped_while_it_fills_and_resumed_ends_with_the_same_bits(tmp_path, small_config, computed):
    settings = ["optim.epochs=2", "target.cache_dtype=float8_e4m3"]
    whole = drive(tmp_path, "whole", cached(tmp_path / "a", small_config, *settings))
    computed.clear()
    run = create_run(tmp_path, "stopped", cached(tmp_path / "b", small_config, *settings))
    stop_after(run, 2)
    assert drive_run(run, lambda line: None).state == "finished"
    assert same(whole, run)
    assert sorted(computed) == list(range(60))
    assert set(recount(run).values()) == {1}


@pytest.mark.slow
def test_filling_killed_in_the_middle_goes_on_and_computes_nothing_twice(tmp_path, small_config):
    config = cached(tmp_path, small_config, "batching.token_budget=120")
    (tmp_path / "config.yaml").write_text(dump_config(config))
    command = [sys.executable, "-m", "dflash", "cache", tmp_path / "config.yaml", "--json"]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    while process.poll() is None and not list((tmp_path / "features").glob("rows-*")):
        time.sleep(0.001)
    process.send_signal(signal.SIGKILL)
    process.wait()
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    told = json.loads(done.stdout.splitlines()[-1])
    assert told["samples"] == told["of_samples"] == 60
    assert 0 < told["computed_tokens"] < int(TokenDataset.open(config.data.path).lengths.sum())


def test_a_cache_of_other_layers_or_another_target_is_refused_with_the_remedy(tmp_path, small_config):
    fill_cache(cached(tmp_path, small_config), progress=False, show=lambda line: None)
    for change, said in (
        ("drafter.target_layer_ids=[1, 2]", r"layer_ids .*, here \[1, 2\]; fingerprint .*; set target.cache to another folder"),
        ("target.dtype=bfloat16", "target_dtype float32, here bfloat16"),
        ("target.cache_dtype=float8_e4m3", "kept_as bfloat16, here float8_e4m3"),
    ):
        config = cached(tmp_path, small_config, change)
        with pytest.raises(RefusedInput, match=said):
            drive_run(create_run(tmp_path, change.partition("=")[0], config), lambda line: None)
        assert any("holds other features" in fault for fault in examine(config).faults)


def test_the_disk_needed_is_told_and_too_small_a_disk_is_refused_before_anything_is_written(tmp_path, small_config, monkeypatch):
    config = cached(tmp_path, small_config)
    needs = int(TokenDataset.open(config.data.path).lengths.sum()) * 2 * 2 * 128
    (need,) = (need for need in examine(config).needs if need.what == "disk for cached features")
    assert need.needs_bytes == needs
    monkeypatch.setattr(cache_facts.shutil, "disk_usage", lambda place: Usage(needs, 1, needs - 1))
    assert any("disk for cached features" in fault and "float8_e4m3" in fault for fault in examine(config).faults)
    with pytest.raises(RefusedInput, match=r"GiB to be written, .* too little; set target.cache to a folder on another disk"):
        fill_cache(config, progress=False, show=lambda line: None)
    assert not (tmp_path / "features").exists()


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_several_targets_fill_one_cache_and_one_that_is_killed_harms_nothing(tmp_path, small_config):
    settings = ("pipeline.engine=ray", "pipeline.targets=2", "pool.capacity_bytes=67108864", "optim.epochs=2", "checkpoint.every=1")
    run = create_run(tmp_path, "run", cached(tmp_path, small_config, *settings))
    hit_when_trained(run, "TargetWorker", signal.SIGKILL, step=2)
    assert drive_run(run, lambda line: None).state == "finished"
    assert set(recount(run).values()) == {1}
    records = np.concatenate([np.fromfile(place, RECORD) for place in (tmp_path / "features").glob("rows-*")])
    assert set(records["sample"].tolist()) == set(range(60))
    assert run.manifest()["feature_cache"]["samples"] == 60
