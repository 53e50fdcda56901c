import json

import polars as pl
import pytest

from dflash.errors import RefusedInput
from dflash.importing.command import import_logs
from dflash.runs.export import export_events
from dflash.runs.folder import RunFolder
from dflash.telemetry.reader import read_events
from dflash.telemetry.recorder import Recorder


@pytest.fixture
def run(tmp_path):
    with Recorder(tmp_path / "run" / "events", "coordinator") as recorder:
        for step in range(1, 6):
            recorder.record("step", step=step, loss=3.0 / step, lr=1e-4, class_tokens=[1, step], skipped=False)
        recorder.record("evaluation", step=5, loss=2.0, acceptance_length=1.5)
    return RunFolder(tmp_path / "run")


def test_tensorboard_files_written_are_read_back_the_same(run, tmp_path):
    done = export_events(run, tmp_path / "tb", "tensorboard")
    assert done["events"] == 6
    import_logs([tmp_path / "tb"], tmp_path / "back", mapping=["loss=step/loss", "lr=step/lr"])
    losses = [event["loss"] for event in read_events(tmp_path / "back" / "events", "step")]
    assert losses == pytest.approx([3.0 / step for step in range(1, 6)])


def test_parquet_keeps_nested_fields_and_csv_writes_them_as_json(run, tmp_path):
    export_events(run, tmp_path / "parquet", "parquet")
    assert pl.read_parquet(tmp_path / "parquet" / "step.parquet")["class_tokens"].to_list()[2] == [1, 3]
    export_events(run, tmp_path / "csv", "csv")
    assert json.loads(pl.read_csv(tmp_path / "csv" / "step.csv")["class_tokens"][2]) == [1, 3]


def test_an_unknown_format_a_folder_in_use_and_an_empty_run_are_refused(run, tmp_path):
    (tmp_path / "used").mkdir()
    (tmp_path / "used" / "x").touch()
    (tmp_path / "none" / "events").mkdir(parents=True)
    for source, out, to in ((run, "new", "xls"), (run, "used", "csv"), (RunFolder(tmp_path / "none"), "new", "csv")):
        with pytest.raises(RefusedInput):
            export_events(source, tmp_path / out, to)
