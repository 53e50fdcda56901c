import errno
import gzip
import json

import pytest
import zstandard
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from dflash.errors import DFlashError, RefusedInput, RunFailed
from dflash.importing.command import import_logs, read_log
from dflash.importing.spool import Spool
from dflash.runs.folder import open_run
from dflash.runs.table import describe_run
from dflash.telemetry.console import ConsoleLine, format_line, parse_line
from dflash.telemetry.reader import read_events

RECORD = """\
[2m] step=1 loss=--- acc=--- streak=--- lr=--- noise=0.0000 | tgt=0.31b/s dft=0.13b/s (5.4Ktok/s) | q_pre=[178] q_hs=[13] q_hsb=[0, 0, 0, 1, 1, 11] | epoch~0.00 ETA=13.5d
[2m] step=1 loss=--- acc=--- streak=--- lr=--- noise=0.0000 | tgt=0.31b/s dft=0.15b/s (6.0Ktok/s) | q_pre=[199] q_hs=[13] q_hsb=[0, 0, 0, 1, 1, 11] | epoch~0.00 ETA=13.6d
[2m] step=1 loss=--- acc=--- streak=--- lr=--- noise=0.0000 | tgt=0.30b/s dft=0.14b/s (5.7Ktok/s) | q_pre=[221] q_hs=[15] q_hsb=[0, 1, 0, 1, 2, 11] | epoch~...
"""  # noqa: E501
MEGATRON = (
    " [2026-05-01 12:00:{second:02d}] iteration {step:8d}/     500 | consumed samples: {samples:12d} | "
    "elapsed time per iteration (ms): 1200.5 | learning rate: 1.0E-04 | global batch size:   256 | "
    "lm loss: 5.1{step}E+00 | loss scale: 1.0 | grad norm: 1.2 | "
    "number of skipped iterations:   0 | number of nan iterations:   0 |"
)


def megatron_log(steps=6):
    return [MEGATRON.format(second=step, step=step, samples=step * 256) for step in range(1, steps + 1)]


def do_import(tmp_path, text, **options):
    log = tmp_path / "run.log"
    log.write_bytes(text if isinstance(text, bytes) else text.encode())
    return import_logs([log], tmp_path / "out", **options)


def steps_of(tmp_path, name="out"):
    return read_events(open_run(tmp_path / name).events, "step")


def test_the_records_lines_become_a_run_with_gauges_and_spread_times(tmp_path):
    result = do_import(tmp_path, RECORD)
    assert (result.lines_read, result.lines_understood, result.lines_not_understood) == (3, 3, 0)
    lines = read_events(tmp_path / "out" / "events", "line")
    assert [line["rate"] for line in lines] == [5.4, 6.0, 5.7]
    assert [line["pool_histogram"][5] for line in lines] == [11, 11, 11]
    assert [line["seconds"] for line in lines] == [0, 10, 20]
    assert open_run(tmp_path / "out").state() == "imported"
    assert describe_run(open_run(tmp_path / "out"))["state"] == "imported"


@pytest.mark.parametrize(
    "pack", [gzip.compress, zstandard.compress, lambda raw: raw.replace(b"\n", b"\r\n")], ids=["gz", "zst", "crlf"]
)
def test_compression_and_line_ends_make_no_difference(tmp_path, pack):
    plain = do_import(tmp_path / "a" if (tmp_path / "a").mkdir() is None else tmp_path, RECORD)
    packed = do_import(tmp_path / "b" if (tmp_path / "b").mkdir() is None else tmp_path, pack(RECORD.encode()))
    assert packed.lines_understood == plain.lines_understood == 3
    assert read_events(tmp_path / "a/out/events", "line") == read_events(tmp_path / "b/out/events", "line")


def test_colours_and_other_output_between_and_before_the_lines_do_not_hide_them(tmp_path):
    first, second, third = RECORD.splitlines()
    text = (
        f"Loading weights: 100%\n\x1b[32m{first}\x1b[0m\nINFO something {second}\n\n{third}\nTraceback (most recent call last):\n"
    )
    result = do_import(tmp_path, text)
    assert (result.lines_read, result.lines_understood, result.lines_blank, result.lines_not_understood) == (6, 3, 1, 2)
    assert [entry["line"] for entry in result.not_understood] == [1, 6]


def console(elapsed, step, rate=9.5, loss=3.0):
    return format_line(ConsoleLine(elapsed, step, loss=loss, ktok_per_second=rate, pool_histogram=(1, 2), pooled=3, prefetched=8))


def test_a_restart_goes_on_with_its_run_and_a_second_run_is_one_of_its_own(tmp_path):
    first = [console(second, second // 10 + 1) for second in range(0, 50, 10)]
    resumed = [console(second, second // 10 + 4) for second in range(0, 30, 10)]
    other = [console(second, 1, rate=5.0) for second in range(0, 30, 10)]
    result = do_import(tmp_path, "\n".join([*first, *resumed, *other]))
    assert [(run["readings"], run["restarts"], run["last_step"]) for run in result.runs] == [(8, 1, 6), (3, 0, 1)]
    started = read_events(tmp_path / "out-1" / "events", "run_started")
    assert [event["step"] for event in started] == [1, 4]
    times = [line["seconds"] for line in read_events(tmp_path / "out-1" / "events", "line")]
    assert times == sorted(times)


def test_runs_printed_into_one_log_with_labels_are_told_apart(tmp_path):
    lines = [line for second in range(0, 40, 10) for line in (f"a | {console(second, 5)}", f"b | {console(second, 1, rate=5.0)}")]
    result = do_import(tmp_path, "\n".join(lines))
    assert [(run["label"], run["readings"], run["restarts"]) for run in result.runs] == [("a |", 4, 0), ("b |", 4, 0)]


def test_the_markers_a_session_begins_with_start_one_session_and_not_two(tmp_path):
    text = [
        f"runs/a: from step 0 of 9\n{console(0, 0)}\n{console(10, 1)}",
        f"runs/a: resumed at step 1 of 9\n{console(0, 2)}\n{console(10, 3)}",
    ]
    result = do_import(tmp_path, "\n".join(text))
    assert result.lines_not_understood == 0
    assert [(run["readings"], run["restarts"]) for run in result.runs] == [(4, 1)]


@pytest.mark.parametrize("width", [None, 80, 61])
def test_megatron_lines_are_read_whole_or_wrapped_by_a_terminal(tmp_path, width):
    lines = ["setting up", "  seq_length .......................... 4096", *megatron_log()]
    if width is not None:
        lines = [line[at : at + width] for line in lines for at in range(0, len(line), width)]
    result = do_import(tmp_path, "\n".join(lines))
    assert result.lines_not_understood == 1
    steps = steps_of(tmp_path)
    assert [step["step"] for step in steps] == [1, 2, 3, 4, 5, 6]
    assert steps[0]["loss"] == 5.11
    assert steps[1]["time"] - steps[0]["time"] == 1.0
    (line, *_) = read_events(tmp_path / "out" / "events", "line")
    assert line["rate"] == pytest.approx(256 * 4096 / 1.2005 / 1_000)


def test_megatron_without_a_sequence_length_has_a_rate_in_samples(tmp_path):
    do_import(tmp_path, "\n".join(megatron_log()))
    (line, *_) = read_events(tmp_path / "out" / "events", "line")
    assert (line["rate_unit"], line["rate"]) == ("samples/s", pytest.approx(256 / 1.2005))


@pytest.mark.parametrize("older", [False, True])
def test_golden_values_are_read_in_both_of_their_forms(tmp_path, older):
    values = {"1": "nan", "5": 17.15, "10": 8.6}
    loss = (
        {"start_step": 5, "end_step": 10, "step_interval": 5, "values": [3.0, 2.5]} if older else {"values": {"5": 3.0, "10": 2.5}}
    )
    do_import(tmp_path, json.dumps({"iteration-time": {"values": values}, "lm loss": loss}, indent=1))
    assert [(step["step"], step["loss"]) for step in steps_of(tmp_path)] == [(1, None), (5, 3.0), (10, 2.5)]
    rates = {line["step"]: line["rate"] for line in read_events(tmp_path / "out" / "events", "line")}
    assert rates == {1: None, 5: pytest.approx(1 / 17.15), 10: pytest.approx(1 / 8.6)}


def mllog(key, value, time_ms, **metadata):
    body = json.dumps(
        {"namespace": "", "time_ms": time_ms, "event_type": "POINT_IN_TIME", "key": key, "value": value, "metadata": metadata}
    )
    return f"worker-0: :::MLLOG {body}"


def test_mlperf_lines_give_rates_losses_and_evaluation_phases(tmp_path):
    lines = [mllog("seed", 7, 1_000_000), mllog("run_start", None, 1_001_000)]
    for step in range(1, 5):
        lines.append(
            mllog("tracked_stats", {"throughput": 50.0 + step, "train_loss": 3.0}, 1_001_000 + step * 1_000, step_num=step)
        )
    lines += [
        mllog("eval_start", None, 1_006_000),
        mllog("train_loss", 9.9, 1_006_500, step_num=4),
        mllog("eval_stop", None, 1_007_000),
        "noise",
    ]
    result = do_import(tmp_path, "\n".join(lines))
    assert (result.lines_understood, result.lines_not_understood) == (9, 1)
    assert [step["loss"] for step in steps_of(tmp_path)] == [3.0] * 4
    assert [event["loss"] for event in read_events(tmp_path / "out" / "events", "evaluation")] == [9.9]


def test_step_lines_are_read_with_a_rate_from_their_own_clock(tmp_path):
    lines = [
        f"step:{step}/100 train_loss:{3 - step / 100:.4f} train_time:{step * 125}ms step_avg:125.00ms" for step in range(1, 21)
    ]
    lines.insert(10, "step:10/100 val_loss:2.5000 train_time:1250ms step_avg:125.00ms")
    do_import(tmp_path, "\n".join(lines))
    rates = [line["rate"] for line in read_events(tmp_path / "out" / "events", "line") if line["rate"] is not None]
    assert rates == pytest.approx([8.0] * len(rates))
    assert len(rates) >= 17
    assert [event["loss"] for event in read_events(tmp_path / "out" / "events", "evaluation")] == [2.5]


def test_a_csv_is_mapped_by_guess_or_as_told(tmp_path):
    text = "iter,tokens_per_sec,train/loss,note\n1,9500,3.1,x\n2,9600,,y\n\nthree,words,only\n"
    result = do_import(tmp_path, text)
    assert result.mapping == {"step": "iter", "rate": "tokens_per_sec:tok/s", "loss": "train/loss"}
    assert (result.lines_read, result.lines_understood, result.lines_blank, result.lines_not_understood) == (5, 3, 1, 1)
    assert [line["rate"] for line in read_events(tmp_path / "out" / "events", "line")] == [9.5, 9.6]
    told = import_logs([tmp_path / "run.log"], tmp_path / "told", mapping=["rate=tokens_per_sec:samples/s", "elapsed=iter:min"])
    assert told.mapping["rate"] == "tokens_per_sec:samples/s"
    assert read_events(tmp_path / "told" / "events", "line")[1]["seconds"] == 60


def test_json_lines_are_flattened_and_mapped(tmp_path):
    rows = [{"_step": step, "perf": {"ktok_per_s": 9.0 + step}, "loss": "NaN" if step == 2 else 1.0} for step in range(4)]
    result = do_import(tmp_path, "\n".join(map(json.dumps, rows)) + "\nnot json\n")
    assert result.mapping["rate"] == "perf.ktok_per_s:ktok/s"
    assert (result.lines_understood, result.lines_not_understood) == (4, 1)
    assert any("nan or inf" in note for note in result.notes)


@pytest.mark.parametrize("mapping", ["rate", "speed=a", "rate=missing:tok/s", "rate=b:furlongs"])
def test_a_mapping_that_cannot_be_is_refused_with_what_can(tmp_path, mapping):
    with pytest.raises(RefusedInput, match="--map"):
        do_import(tmp_path, "a,b\n1,2\n", mapping=[mapping])


def test_tensorboard_files_of_both_kinds_of_scalar_are_read(tmp_path):
    from tensorboardX import SummaryWriter
    from tensorboardX.proto import event_pb2, summary_pb2, tensor_pb2, tensor_shape_pb2

    with SummaryWriter(str(tmp_path / "tb")) as writer:
        for step in range(5):
            writer.add_scalar("perf/tokens_per_sec", 9_500 + step, step, walltime=1_000 + step)
            writer.add_scalar("train/loss", 3.0 - step / 10, step, walltime=1_000 + step)
        shape = tensor_shape_pb2.TensorShapeProto()
        tensor = tensor_pb2.TensorProto(dtype=1, tensor_shape=shape, float_val=[0.5])
        value = summary_pb2.Summary.Value(tag="train/grad_norm", tensor=tensor)
        writer.file_writer.add_event(event_pb2.Event(wall_time=1_004, step=4, summary=summary_pb2.Summary(value=[value])))
    result = import_logs([tmp_path / "tb"], tmp_path / "out")
    assert result.format == "TensorBoard"
    assert result.lines_not_understood == 0
    steps = steps_of(tmp_path)
    assert [step["step"] for step in steps] == [0, 1, 2, 3, 4]
    assert steps[4]["grad_norm"] == 0.5
    assert steps[4]["time"] - steps[0]["time"] == 4
    lines = read_events(tmp_path / "out" / "events", "line")
    assert lines[0]["rate"] == pytest.approx(9.5)


def test_a_clock_that_jumps_goes_on_at_its_usual_pace_and_is_noted(tmp_path):
    times = [0, 10, 20, 30, 5, 15, 90_000, 90_010]
    rows = "\n".join(f"{step},{1_700_000_000 + time},9000" for step, time in enumerate(times))
    do_import(tmp_path, f"step,time,tokens_per_sec\n{rows}\n")
    seconds = [line["seconds"] for line in read_events(tmp_path / "out" / "events", "line")]
    assert seconds == [0, 10, 20, 30, 40, 50, 60, 70]
    assert any("clock jumps 2" in note for note in json.loads((tmp_path / "out" / "imported.json").read_text())["notes"])


@pytest.mark.parametrize("text", ["", "\n\n", "hello\nworld\n", "\x00\x01\x02", "{}", "[]", '{"a": 1}', "a,b\n1,2\n"])
def test_an_empty_log_and_logs_of_other_programs_are_refused_with_the_formats_read(tmp_path, text):
    with pytest.raises(RefusedInput, match=r"is empty|was understood"):
        do_import(tmp_path, text)
    assert not (tmp_path / "out").exists()


def test_an_import_that_ends_early_leaves_nothing_behind(tmp_path, monkeypatch):
    def full(*_):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("dflash.importing.command.RunWriter.finish", full)
    with pytest.raises(RunFailed, match="No space left"):
        do_import(tmp_path, RECORD)
    assert [path.name for path in tmp_path.iterdir()] == ["run.log"]


def test_one_line_and_lines_without_any_number_still_make_a_run(tmp_path):
    assert do_import(tmp_path, RECORD.splitlines()[0]).runs[0]["readings"] == 1


def test_a_folder_that_is_there_is_never_written_into(tmp_path):
    do_import(tmp_path, RECORD)
    with pytest.raises(RefusedInput, match="already"):
        do_import(tmp_path, RECORD)


def test_a_line_of_ten_megabytes_and_a_torn_gzip_file_are_survived(tmp_path):
    result = do_import(tmp_path, RECORD + "x" * 10_000_000 + "\n" + RECORD)
    assert (result.lines_read, result.lines_understood, result.lines_not_understood) == (7, 6, 1)
    packed = gzip.compress((RECORD * 1_000).encode())
    (tmp_path / "torn.gz").write_bytes(packed[: len(packed) // 2])
    torn = import_logs([tmp_path / "torn.gz"], tmp_path / "torn")
    assert torn.lines_understood > 0
    assert any("breaks off" in note for note in torn.notes)


NUMBERS = st.one_of(st.none(), st.floats(0, 1e6, allow_nan=False).map(lambda value: round(value, 2)))
LINES = st.builds(
    ConsoleLine, st.integers(0, 10**6).map(float), st.integers(0, 10**9), NUMBERS, NUMBERS, NUMBERS, NUMBERS, NUMBERS, NUMBERS, NUMBERS,
    NUMBERS, st.one_of(st.none(), st.integers(0, 999)), st.one_of(st.none(), st.integers(0, 999)),
    st.one_of(st.none(), st.lists(st.integers(0, 99), min_size=1, max_size=8).map(tuple)), NUMBERS, NUMBERS,
)  # fmt: skip
PREFIX = st.sampled_from(["", "INFO: ", "(main pid=7) ", "[rank0]: ", "\x1b[1m", "a | "])


@settings(max_examples=200, deadline=None)
@given(LINES, PREFIX, st.integers(0, 400))
def test_a_line_is_read_as_the_parser_that_defines_it_reads_it(line, prefix, cut):
    from dflash.importing import console_log
    from dflash.importing.lines import clean

    text = (prefix + format_line(line))[: cut or None]
    import polars as pl

    frame = console_log.read(pl.DataFrame({"line": [1], "text": clean(pl.Series([text]))}))
    expected = parse_line(text)
    if expected is None:
        assert frame.is_empty() or frame["step"].null_count() == len(frame)
        return
    (row,) = frame.iter_rows(named=True)
    ours = {"elapsed_seconds": row["elapsed"], "ktok_per_second": row["rate"]}
    for name, value in vars(expected).items():
        got = ours.get(name, row.get(name))
        assert (tuple(got) if isinstance(got, list) else got) == value, name


def check_accounts(tmp_path_factory, files, mapping=()):
    """Import; either it is refused with a reason, or every line is in one count and the run can be read again."""
    out = tmp_path_factory.mktemp("fuzz") / "out"
    try:
        result = import_logs(files, out, mapping=mapping)
    except DFlashError:
        return
    assert result.lines_read == result.lines_understood + result.lines_blank + result.lines_not_understood
    assert result.lines_not_understood >= 0
    assert len(result.not_understood) <= 20
    for run in result.runs:
        events = read_events(open_run(run["run"]).events)
        times = [event["seconds"] for event in events if event["event"] == "line"]
        assert times == sorted(times)
        assert {event["event"] for event in events} >= {"run_started", "run_ended"}


STATS = st.recursive(
    st.none() | st.floats() | st.text(max_size=5),
    lambda inner: st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=5,
)
COUNTS = st.integers(0, 10**6)
SOUP = st.lists(
    st.one_of(
        st.text(max_size=60),
        st.builds(lambda line, cut: format_line(line)[:cut], LINES, st.integers(0, 250)),
        st.builds(lambda step, cut: MEGATRON.format(second=step % 60, step=step, samples=step)[:cut], COUNTS, st.integers(0, 400)),
        st.builds(mllog, st.sampled_from(["train_loss", "run_start", "eval_start", "tracked_stats"]), STATS, COUNTS),
        st.builds("step:{}/{} train_loss:{} train_time:{}ms".format, st.integers(-5, 10**20), COUNTS, st.floats(), st.floats()),
    ),
    max_size=12,
)
FUZZ = settings(max_examples=120, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])


@FUZZ
@given(SOUP, st.sampled_from(["utf-8", "utf-16", "latin-1"]), st.sampled_from(["\n", "\r\n", "\r"]))
def test_no_mixture_of_lines_crashes_the_import_and_every_line_is_accounted_for(tmp_path_factory, soup, encoding, end):
    path = tmp_path_factory.mktemp("log") / "x.log"
    path.write_bytes(end.join(soup).encode(encoding, errors="replace"))
    check_accounts(tmp_path_factory, [path])


CELLS = st.one_of(st.text(max_size=8), st.floats().map(str), st.integers().map(str), st.just("2026-01-01T00:00:00Z"))


@FUZZ
@given(
    st.permutations(["step", "time", "loss", "tok/s", "phase"]),
    st.lists(st.lists(CELLS, max_size=7), max_size=8),
    st.sampled_from(",;\t"),
)
def test_no_table_crashes_the_import(tmp_path_factory, header, rows, separator):
    path = tmp_path_factory.mktemp("log") / "x.csv"
    path.write_text("\n".join(separator.join(row) for row in [header, *rows]), encoding="utf-8", errors="replace")
    check_accounts(tmp_path_factory, [path])


KEYS = st.sampled_from(["step", "loss", "values", "time", "lm loss", "5"])
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=6),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(KEYS, inner, max_size=4),
    max_leaves=12,
)


@FUZZ
@given(st.lists(JSON, max_size=6))
def test_no_json_crashes_the_import(tmp_path_factory, values):
    path = tmp_path_factory.mktemp("log") / "x.jsonl"
    path.write_text("\n".join(json.dumps(value) for value in values), encoding="utf-8", errors="replace")
    check_accounts(tmp_path_factory, [path])


@pytest.mark.parametrize("name", ["x.log", "x.gz", "x.json", "x.jsonl", "x.csv", "x.tfevents.1"])
@pytest.mark.parametrize(
    ("data", "said"),
    [
        (b"\x28\xb5\x2f\xfd" + b"\xff" * 20, r"it is empty; .*breaks off \(zstd decompress error"),
        (b"\x1f\x8b\x08\x00\x00\x00\x00\x00\x00\x03" + b"\xff" * 30, r"it is empty; .*breaks off \(Error -3 while decompressing"),
        (b"\x1f\x8b" + b"\xff" * 20, "can't be read .Not a gzipped file"),
        (b"\x1f\x8b\x08", "it is empty"),
        (b"\x28\xb5\x2f\xfd", "it is empty"),
    ],
)
def test_what_only_begins_as_a_compressed_file_is_refused_by_that_reason(tmp_path, name, data, said):
    (tmp_path / name).write_bytes(data)
    with pytest.raises(RefusedInput, match=said):
        import_logs([tmp_path / name], tmp_path / "out")
    assert not (tmp_path / "out").exists()


@FUZZ
@given(
    st.one_of(st.just(b""), st.sampled_from([b"\x28\xb5\x2f\xfd", b"\x1f\x8b", b"\x1f\x8b\x08"])),
    st.binary(max_size=400),
    st.integers(0, 300),
    st.sampled_from(["x.tfevents.1", "x.log", "x.gz", "x.json"]),
)
def test_no_bytes_crash_the_import(tmp_path_factory, magic, noise, at, name):
    from tensorboardX.proto import event_pb2, summary_pb2
    from tensorboardX.record_writer import RecordWriter

    folder = tmp_path_factory.mktemp("log")
    writer = RecordWriter(str(folder / "seed"))
    for step in range(3):
        value = summary_pb2.Summary.Value(tag="loss", simple_value=float(step))
        writer.write(event_pb2.Event(wall_time=step, step=step, summary=summary_pb2.Summary(value=[value])).SerializeToString())
    writer.close()
    valid = (folder / "seed").read_bytes()
    path = folder / name
    path.write_bytes(magic + valid[:at] + noise + valid[at:])
    check_accounts(tmp_path_factory, [path])


def as_jsonl(lines):
    return [json.dumps({"step": at, "loss": at / 7, **({"tps": 9e3 + at} if at > 40 else {})}) for at in range(len(lines))]


def many_lines():
    rows = [console(10 * (at % 60), at // 6 + 1) for at in range(150)]
    labelled = [f"a | {console(10 * at, at + 3, rate=4.0)}" for at in range(40)]
    mixed = [line for pair in zip(rows, labelled, strict=False) for line in pair] + rows[40:]
    return {
        "console": mixed,
        "wrapped": ["  seq_length ... 4096"] + [line[at : at + 90] for line in megatron_log(59) for at in range(0, len(line), 90)],
        "steps": [f"step:{at}/99 {'val' if at % 9 == 0 else 'train'}_loss:{at / 9:.3f} train_time:{at * 120}ms" for at in range(80)],
        "mllog": [
            mllog(("eval_start", "train_loss", "eval_stop", "train_loss")[at % 4], 1.5 + at, 10_000 * at, step_num=at) for at in range(90)
        ],
        "csv": ["step,tok/s,loss", *(f'{at},"{9_000 + at}",{at / 3}' if at % 5 == 0 else f"{at},{9_000 + at},{at / 3}" for at in range(90))],
        "jsonl": as_jsonl(range(90)),
    }  # fmt: skip


def comparable(event):
    """Without the run's name, and without the last bits, which differ with a number's place in a vector."""
    return {key: float(f"{value:.12g}") if isinstance(value, float) else value for key, value in event.items() if key != "run"}


@pytest.mark.parametrize("name", ["console", "wrapped", "steps", "mllog", "csv", "jsonl"])
@pytest.mark.parametrize("chunk_bytes", [700, 1_999])
def test_a_log_read_in_parts_kept_on_disk_is_the_run_it_is_when_read_at_once(tmp_path, monkeypatch, name, chunk_bytes):
    log = tmp_path / "x.log"
    log.write_text("\n".join(many_lines()[name]))
    whole = import_logs([log], tmp_path / "whole")
    monkeypatch.setattr("dflash.importing.lines.CHUNK_BYTES", chunk_bytes)
    monkeypatch.setattr("dflash.importing.spool.MOST_BYTES_IN_MEMORY", 0)
    parts = import_logs([log], tmp_path / "parts")
    assert parts.lines_not_understood == whole.lines_not_understood == 0
    assert [{**run, "run": None} for run in parts.runs] == [{**run, "run": None} for run in whole.runs]
    for run, other in zip(whole.runs, parts.runs, strict=True):
        first, second = (read_events(open_run(each["run"]).events) for each in (run, other))
        assert [comparable(event) for event in first] == [comparable(event) for event in second]


def test_events_come_in_order_of_time_and_a_step_keeps_the_last_loss_that_was_told(tmp_path):
    lines = [console(10 * at, at // 6, loss=at if at % 6 == 2 else None) for at in range(60)]
    do_import(tmp_path, "\n".join(lines))
    events = read_events(tmp_path / "out" / "events")
    assert [event["seconds"] for event in events] == sorted(event["seconds"] for event in events)
    assert [event["loss"] for event in events if event["event"] == "step"] == [6.0 * step + 2 for step in range(10)]
    assert [event["event"] for event in events[:2]] == ["run_started", "sample"]
    assert events[-1]["event"] == "run_ended"


def test_reading_needs_no_run_folder(tmp_path):
    log = tmp_path / "a.log"
    log.write_text(RECORD)
    with Spool() as spool:
        assert [len(frame) for frame in read_log([log], spool).parts()] == [3]


def test_an_imported_run_opens_in_every_chart_of_a_run(tmp_path):
    from dflash.charts.run import draw_run
    from dflash.telemetry.series import RunSeries

    do_import(tmp_path, "\n".join(console(second, second // 10 + 1) for second in range(0, 900, 10)))
    series = RunSeries(tmp_path / "out" / "events")
    while series.update():
        pass
    assert series.steps["elapsed_seconds"][-1] == read_events(tmp_path / "out" / "events", "line")[-1]["seconds"]
    figures = draw_run([series])
    assert len(figures["loss"].data) > 0
    assert len(figures["throughput"].data) > 0


def test_the_config_a_run_had_is_kept_with_it_and_names_its_buckets(tmp_path):
    config = tmp_path / "config.yaml"
    config.write_text("data: {path: a}\ntarget: {path: b}\nbatching: {boundaries: [0, 770, 8192]}\n")
    do_import(tmp_path, "\n".join(console(second, second // 10 + 1) for second in range(0, 90, 10)), config=config)
    run = open_run(tmp_path / "out")
    assert run.config().batching.boundaries == [0, 770, 8192]
    assert read_events(run.events, "run_started")[0]["boundaries"] == [0, 770, 8192]
