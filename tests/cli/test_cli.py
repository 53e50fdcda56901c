"""The command line as scripts see it: one JSON object last on standard output, errors by exit code, no tracebacks."""

import json
import signal
import subprocess
import sys
import time

import numpy as np
import polars as pl
import pytest
import yaml

from dflash.runs.folder import RunFolder
from dflash.telemetry.reader import read_events
from tests.pipeline.recount import recount


def dflash(*words, **options):
    return subprocess.run(
        [sys.executable, "-m", "dflash", *map(str, words)], capture_output=True, text=True, timeout=250, **options
    )


def last_json(ran):
    assert ran.returncode == 0, ran.stderr
    return json.loads(ran.stdout.splitlines()[-1])


@pytest.fixture
def lengths(tmp_path):
    path = tmp_path / "lengths.parquet"
    draws = np.random.default_rng(0).lognormal(7.0, 0.6, 5_000)
    pl.DataFrame({"length": np.clip(draws, 16, 8192).astype(np.int32)}).write_parquet(path)
    return path


@pytest.fixture
def config_file(tmp_path, small_config):
    path = tmp_path / "config.yaml"
    path.write_text(yaml.safe_dump(small_config("optim.epochs=4").model_dump(mode="json")))
    return path


def test_plan_prints_the_contracts_keys_and_writes_the_plan(lengths, tmp_path):
    figures = last_json(dflash("plan", lengths, "--window", 8, "--out", tmp_path / "plan.parquet", "--json"))
    assert {"batches", "padding_efficiency", "fill", "max_padded_tokens", "vr", "chi", "membership_reuse", "plan_seconds"} <= set(
        figures
    )
    assert set(figures["vr"]) == set(figures["chi"]) == {"1", "8", "16", "32"}
    plan = pl.read_parquet(tmp_path / "plan.parquet")
    assert plan.columns == ["batch", "sample"]
    assert sorted(plan["sample"].to_list()) == list(range(5_000))
    assert plan["batch"].n_unique() == figures["batches"]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["plan", "nowhere.parquet"], "nowhere.parquet"),
        (["plan", "LENGTHS", "--strategy", "clever"], "batching.strategy"),
        (["plan", "LENGTHS", "--boundaries", "0,x"], "expected whole numbers"),
        (["plan", "LENGTHS", "--boundaries", "0,500,400"], "not ascending"),
        (["plan", "LENGTHS", "--strategy", "bucketed", "--boundaries", "0,500"], "they end below"),
        (["plan", "LENGTHS", "--token-budget", "100"], "batching.token_budget=100"),
        (["train", "nowhere.yaml"], "nowhere.yaml: can't be read"),
        (["train", "CONFIG", "--set", "optim.lrr=1"], "did you mean optim.lr"),
        (["train", "CONFIG", "--name", "../x"], "use letters"),
        (["resume", "nobody"], "no run there"),
        (["control", "nobody", "stop"], "no run there"),
        (["prepare", "nowhere.jsonl", "--tokenizer", "qwen3-tiny", "--out", "x"], "nowhere.jsonl"),
    ],
)
def test_refused_input_ends_with_2_and_a_message_without_a_traceback(lengths, config_file, tmp_path, words, message):
    named = {"LENGTHS": lengths, "CONFIG": config_file}
    ran = dflash(*(named.get(word, word) for word in words), cwd=tmp_path)
    assert ran.returncode == 2
    assert message in ran.stderr
    assert "Traceback" not in ran.stderr
    assert ran.stdout == ""


def test_wrong_usage_ends_with_2():
    assert dflash("plan").returncode == 2
    assert dflash("explode").returncode == 2


def test_runs_of_an_empty_folder(tmp_path):
    assert last_json(dflash("runs", "--runs", tmp_path, "--json")) == {"runs": []}
    assert "no runs" in dflash("runs", "--runs", tmp_path).stdout


def test_train_ends_with_one_json_object_and_progress_elsewhere(config_file, tmp_path):
    words = ("--set", "optim.max_steps=3", "--name", "a", "--runs", tmp_path, "--json")
    ran = dflash("train", config_file, *words)
    outcome = last_json(ran)
    assert (outcome["state"], outcome["step"]) == ("finished", 3)
    assert len(ran.stdout.splitlines()) == 1
    assert "step 0 of 3" in ran.stderr
    (row,) = last_json(dflash("runs", "--runs", tmp_path, "--json"))["runs"]
    assert (row["run"], row["state"], row["step"]) == ("a", "finished", 3)
    ran = dflash("train", config_file, *words)
    assert ran.returncode == 2
    assert "is there already" in ran.stderr


def interrupt(config_file, tmp_path, times):
    process = subprocess.Popen(
        [
            sys.executable,
            "-m",
            "dflash",
            "train",
            str(config_file),
            "--name",
            "a",
            "--runs",
            str(tmp_path),
            "--set",
            "checkpoint.every=1",
        ],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    run = RunFolder(tmp_path / "a")
    while len(read_events(run.events, "checkpoint")) < 2:
        assert process.poll() is None, process.stderr.read()
        time.sleep(0.02)
    for _ in range(times):
        process.send_signal(signal.SIGINT)
        time.sleep(0.01)
    out, err = process.communicate(timeout=120)
    return run, process.returncode, out, err


@pytest.mark.parametrize(("times", "code"), [(1, 0), (2, 130)])
def test_ctrl_c_leaves_a_run_that_goes_on_to_every_sample_once(config_file, tmp_path, times, code):
    run, returncode, out, err = interrupt(config_file, tmp_path, times)
    assert returncode in ((0,) if times == 1 else (0, code))  # the second one may come after the end
    assert "Traceback" not in err
    assert run.state() == "stopped"
    assert "Ctrl-C again to stop now" in out
    assert last_json(dflash("resume", run.path, "--json"))["state"] == "finished"
    assert set(recount(run).values()) == {1}
    assert len(recount(run)) == 4 * 52


def test_a_file_that_can_not_be_written_is_named_without_a_traceback(tmp_path, config_file):
    run = tmp_path / "runs" / "blocked"
    run.mkdir(parents=True)
    (run / "config.yaml").write_text(config_file.read_text())
    (run / "run.lock").mkdir()
    ran = dflash("resume", run)
    assert ran.returncode == 1
    assert ran.stderr.splitlines()[-1] == f"dflash: {run / 'run.lock'}: is a directory"
    assert "Traceback" not in ran.stderr
