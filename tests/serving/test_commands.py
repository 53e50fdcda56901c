"""The subcommands, on a run as training leaves it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner, Result

from dflash.cli.serving import register
from dflash.data.dataset import TokenDataset
from dflash.errors import RefusedInput
from tests.serving.conftest import run_with_checkpoints

app = typer.Typer()
register(app)


def invoke(*arguments: str, text: str | None = None) -> Result:
    result = CliRunner().invoke(app, list(arguments), input=text)
    if result.exception and not isinstance(result.exception, SystemExit):
        raise result.exception
    assert result.exit_code == 0, result.output
    return result


def last_line(result: Result) -> dict:
    return json.loads(result.stdout.strip().splitlines()[-1])


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory, token_folder: Path) -> Path:
    return run_with_checkpoints(
        tmp_path_factory.mktemp("runs"),
        "qwen3-tiny",
        [5, 6],
        TokenDataset.open(token_folder).fingerprint,
        data={"path": str(token_folder), "holdout": 2},
        drafter={"mask_token_id": None},
    ).path


def test_a_run_is_exported_evaluated_and_generates(run: Path, tmp_path: Path, token_folder: Path) -> None:
    out = str(tmp_path / "drafter")
    exported = last_line(invoke("export", "tiny", "--runs", str(run.parent), "--out", out, "--json"))
    assert (exported["tensors"], exported["step"]) == (25, 6)

    common = ["--max-new-tokens", "12", "--json"]
    told = invoke("eval", out, "--target", "qwen3-tiny", "--data", str(token_folder), "--untrained", *common)
    evaluation = last_line(told)
    assert evaluation["prompts"] == 2  # what the run held out
    assert evaluation["lossless"] is evaluation["untrained"]["lossless"] is True
    assert evaluation["acceptance_length"] >= 1.0
    assert len(evaluation["accuracy_by_slot"]) == 4
    assert evaluation["target_calls"] <= evaluation["plain_target_calls"]
    assert evaluation["step"] == 6
    assert "{" not in told.stderr

    for checkpoint in (str(run), str(run / "checkpoints/step-00000005")):  # target and data are known from the run
        assert last_line(invoke("eval", checkpoint, "--limit", "1", *common))["prompts"] == 1

    answer = last_line(invoke("generate", out, "--prompt", "the run plans", *common))
    assert answer["lossless"] is True
    assert answer["tokens"] <= 12
    piped = last_line(invoke("generate", out, "--prompt", "-", *common, text="the run plans"))
    assert piped["text"] == answer["text"]
    assert last_line(invoke("generate", out, "--prompt", "x", "--raw", "--temperature", "1.5", *common))["lossless"] is None


def test_people_get_a_table(run: Path) -> None:
    shown = invoke("eval", str(run), "--max-new-tokens", "6", "--untrained").stdout
    for said in ("acceptance length", "target calls saved", "tokens/s", "2 of 2", "slot 4", "untrained"):
        assert said in shown
    assert "acceptance length" in invoke("generate", str(run), "--prompt", "hello", "--max-new-tokens", "6").stdout
    shown = invoke("doctor", str(run / "config.yaml")).stdout
    assert "memory of this machine" in shown


def test_doctor_prints_what_it_found_before_it_refuses(run: Path) -> None:
    arguments = ["doctor", str(run / "config.yaml"), "--set", "data.path=nowhere", "--json"]
    result = CliRunner().invoke(app, arguments)
    assert isinstance(result.exception, RefusedInput)
    assert json.loads(result.stdout)["fits"] is False
    assert json.loads(result.stdout)["faults"] == ["nowhere: no such folder; it is written by `dflash prepare`"]


@pytest.mark.parametrize(
    ("target", "said"), [("qwen3_5-tiny", "layers 8 instead of 6"), ("nowhere", "no such folder, and the shipped targets")]
)
def test_another_target_is_refused(run: Path, target: str, said: str) -> None:
    with pytest.raises(RefusedInput, match=said):
        invoke("eval", str(run), "--target", target)
    with pytest.raises(RefusedInput, match=said):
        invoke("generate", str(run), "--prompt", "x", "--target", target)
