"""Bad input for `dflash plan`, `train`, `import`, `report` and `eval`: lengths, settings, prepared data, logs, run folders, drafters."""

from __future__ import annotations

import gzip
import itertools
import json
import pickle
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import polars as pl
import yaml

from dflash.config import RunConfig, Section
from tests.corpus.cases import Case, Verdict


def plan_cases(folder: Path, sound: Path) -> Iterator[Case]:
    """Every case for `dflash plan`: lengths and options."""

    def case(name: str, place: Path, expected: Verdict = "refused", *more: str) -> Case:
        return Case("plan", name, ["plan", str(place), *more], expected, () if more or expected == "accepted" else (str(place),))

    good = folder / "good.parquet"
    pl.DataFrame({"length": [10, 20, 30, 40]}).write_parquet(good)
    for name, column in (
        ("below zero", [10, -1]),
        ("zero", [10, 0]),
        ("nulls", [10, None]),
        ("words", ["ten", "twenty"]),
        ("fractions", [1.5, 2.5]),
        ("no rows", pl.Series([], dtype=pl.Int64)),
        ("not a number", [1.0, float("nan")]),
        ("lists", [[1], [2]]),
        ("dates", pl.Series([0, 1]).cast(pl.Date)),
        ("booleans", [True, False]),
    ):
        place = folder / f"{name}.parquet"
        pl.DataFrame({"length": column}).write_parquet(place)
        yield case(f"lengths: {name}", place)
    pl.DataFrame({"a": [1], "b": [2]}).write_parquet(folder / "other-column.parquet")
    yield case("lengths: two columns of other names", folder / "other-column.parquet")
    for name, data in (("cut off", good.read_bytes()[:-9]), ("empty", b""), ("text", b"10\n20\n")):
        (folder / f"{name}.parquet").write_bytes(data)
        yield case(f"lengths: {name}", folder / f"{name}.parquet")
    for name, text in (("words", "ten\ntwenty\n"), ("binary", "\0\1\2"), ("empty", ""), ("below zero", "length\n-4\n")):
        (folder / f"{name}.csv").write_text(text)
        yield case(f"lengths: csv of {name}", folder / f"{name}.csv")
    yield case("lengths: no such file", folder / "nowhere.parquet")
    for more in (
        ("--strategy", "magic"),
        ("--order", "backwards"),
        ("--boundaries", "0,10,5"),
        ("--boundaries", "5,10"),
        ("--boundaries", "0,x"),
        ("--boundaries", ""),
        ("--boundaries", "0,10"),
        ("--token-budget", "0"),
        ("--token-budget", "5"),
        ("--window", "0"),
        ("--jitter", "-1"),
        ("--max-rows", "0"),
        ("--seed", "-1"),
        ("--epoch", "-1"),
        ("--out", str(folder / "no" / "such" / "folder" / "plan.parquet")),
    ):
        words = ("--strategy", "bucketed", *more) if more[0] == "--boundaries" else more
        yield case(f"option {' '.join(more)}".replace(str(folder), ""), good, "refused", *words)
    yield from (case(f"data set: {name}", place) for name, place in _damaged_data(folder, sound))


def _damaged_data(folder: Path, sound: Path) -> Iterator[tuple[str, Path]]:
    """Copies of a prepared data set, each with one thing wrong."""
    manifest = json.loads((sound / "data" / "manifest.json").read_text())

    def rewritten(**changes: Any) -> Callable[[Path], object]:
        return lambda copy: (copy / "manifest.json").write_text(json.dumps({**manifest, **changes}))

    def shard(copy: Path) -> Path:
        return next(iter(sorted((copy / "shards").iterdir())))

    changes: dict[str, Callable[[Path], object]] = {
        "no manifest": lambda copy: (copy / "manifest.json").unlink(),
        "manifest is no JSON": lambda copy: (copy / "manifest.json").write_text("{"),
        "manifest is binary": lambda copy: (copy / "manifest.json").write_bytes(b"\xff\xfe\0"),
        "manifest is a list": lambda copy: (copy / "manifest.json").write_text("[]"),
        "manifest of another format": rewritten(format=99),
        "manifest without shards": lambda copy: (copy / "manifest.json").write_text(json.dumps({**manifest, "shards": 3})),
        "a shard is missing": lambda copy: shard(copy).unlink(),
        "a shard is cut off": lambda copy: shard(copy).write_bytes(shard(copy).read_bytes()[:-50]),
        "a shard is other data": lambda copy: shard(copy).write_bytes(b"x" * shard(copy).stat().st_size),
    }
    for name, change in changes.items():
        copy = folder / f"data, {name}"
        shutil.copytree(sound / "data", copy)
        for flat in copy.glob("flat-*"):
            shutil.rmtree(flat)
        change(copy)
        yield name, copy


def train_cases(folder: Path, sound: Path) -> Iterator[Case]:
    """Every case for `dflash train`: files of settings, single settings, data, targets."""
    tree = yaml.safe_load((sound / "config.yaml").read_text())
    names = itertools.count()

    def case(name: str, place: Path, *more: str, named: tuple[str, ...] = ()) -> Case:
        words = ["train", str(place), "--runs", str(folder / "runs"), "--name", f"r{next(names)}", *more]
        return Case("train", name, words, "refused", named)

    def with_tree(name: str, changed: Any) -> Path:
        place = folder / f"{name}.yaml"
        place.write_text(yaml.safe_dump(changed))
        return place

    for name, data in (
        ("empty", b""),
        ("a list", b"- 1\n- 2\n"),
        ("a number", b"7"),
        ("no YAML", b"a: [1, 2\nb: }"),
        ("tabs", b"data:\n\tpath: x"),
        ("binary", bytes(range(256))),
        ("an object of Python", b"!!python/object/apply:os.system ['true']"),
        ("a key twice", b"data: {path: a}\ndata: 3"),
        ("an alias of itself", b"data: &a {path: *a}"),
        ("UTF-16", "data: {path: x}".encode("utf-16")),
    ):
        (folder / f"{name}.yaml").write_bytes(data)
        yield case(f"settings: {name}", folder / f"{name}.yaml", named=(str(folder / f"{name}.yaml"),))
    yield case("settings: no such file", folder / "nowhere.yaml", named=("nowhere.yaml",))
    yield case("settings: a folder", folder, named=(str(folder),))
    for name, changed in (
        ("unknown section", {**tree, "optimizer": {"lr": 1}}),
        ("unknown key", {**tree, "optim": {"learning_rate": 1}}),
        ("section is a list", {**tree, "optim": [1]}),
        ("section is null", {**tree, "data": None}),
        ("no data", {key: value for key, value in tree.items() if key != "data"}),
        ("no target", {key: value for key, value in tree.items() if key != "target"}),
    ):
        yield case(f"settings: {name}", with_tree(name, changed))
    good = folder / "good.yaml"
    good.write_text((sound / "config.yaml").read_text())
    for key, value in _out_of_bounds():
        yield case(f"setting {key}={value}", good, "--set", f"{key}={value}", named=(key,))
    for words in ("optim.lr", "=3", "optim=3", "optim.lr=[", "a.b.c=1", ".lr=1", "optim.=1"):
        yield case(f"--set {words}", good, "--set", words)
    for name, place in _damaged_data(folder, sound):
        yield case(f"data set: {name}", good, "--set", f"data.path={place}", named=(str(place),))
    yield case("data set: no such folder", good, "--set", "data.path=/nowhere", named=("/nowhere",))
    yield case("data set: all held out", good, "--set", "data.holdout=100000")
    for name in ("nowhere", "bare", "broken"):
        place = folder / f"target-{name}"
        if name != "nowhere":
            place.mkdir()
        if name == "broken":
            (place / "config.json").write_text("{")
        yield case(f"target: {name}", good, "--set", f"target.path={place}", named=(str(place),))
    for name in ("../out", "a/b", ".", "x" * 300):
        yield Case(
            "train",
            f"name of the run: {name[:20]!r}",
            ["train", str(good), "--runs", str(folder / "runs"), "--name", name],
            "refused",
        )


def _out_of_bounds() -> Iterator[tuple[str, str]]:
    """A value of the wrong type for every setting, and one below its bound where it has one."""
    for section, field in RunConfig.model_fields.items():
        kind = field.annotation
        if section == "simulation" or not (isinstance(kind, type) and issubclass(kind, Section)):
            continue
        for key, setting in kind.model_fields.items():
            if "str" not in str(setting.annotation):
                yield f"{section}.{key}", "{a: 1}"
            bounds = [rule for rule in setting.metadata if hasattr(rule, "ge") or hasattr(rule, "gt")]
            if bounds:
                yield f"{section}.{key}", "-1"


def import_cases(folder: Path, sound: Path) -> Iterator[Case]:
    """Every case for `dflash import`: logs."""
    console = (sound / "runs" / "run" / "console.log").read_bytes()
    table = b"step,loss,tokens_per_s\n" + b"".join(b"%d,%f,%d\n" % (n, 3 - n / 100, 1000 + n) for n in range(1, 60))
    rows = b"".join(json.dumps({"step": n, "loss": 3 - n / 100, "tokens_per_s": 1000 + n}).encode() + b"\n" for n in range(1, 60))
    logs: dict[str, tuple[str, bytes, Verdict]] = {
        "empty": ("log", b"", "refused"),
        "blank": ("log", b"\n \n\n", "refused"),
        "prose": ("log", b"It was a dark and stormy night.\n" * 50, "refused"),
        "binary": ("log", bytes(range(256)) * 50, "refused"),
        "zero bytes": ("log", b"\0" * 5000, "refused"),
        "HTML": ("log", b"<html><body>502</body></html>", "refused"),
        "one long line": ("log", b"x" * 3_000_000, "refused"),
        "console, whole": ("log", console, "accepted"),
        "console, last line torn": ("log", console[:-20], "accepted"),
        "console, Windows line ends": ("log", console.replace(b"\n", b"\r\n"), "accepted"),
        "console, colours": ("log", console.replace(b"loss", b"\x1b[31mloss\x1b[0m"), "accepted"),
        "console, a mark before it": ("log", b"\xef\xbb\xbf" + console, "accepted"),
        "console, bytes that are no text between": ("log", console.replace(b"\n", b"\n\xff\xfe\xfd\n"), "accepted"),
        "console, zero bytes between": ("log", console.replace(b"\n", b"\n\0\0\n"), "accepted"),
        "console, twice": ("log", console * 2, "accepted"),
        "console, gzip": ("log.gz", gzip.compress(console), "accepted"),
        "gzip, cut off": ("log.gz", gzip.compress(console)[:-12], "accepted"),
        "gzip that is none": ("log.gz", console, "accepted"),
        "CSV, whole": ("csv", table, "accepted"),
        "CSV, only its head": ("csv", table.split(b"\n")[0] + b"\n", "refused"),
        "CSV, no head": ("csv", table.split(b"\n", 1)[1], "refused"),
        "CSV, ragged": ("csv", table + b"60,2\n61,2,3,4,5\n", "accepted"),
        "CSV, words for numbers": ("csv", table + b"sixty,two,many\n", "accepted"),
        "CSV, nan and inf": ("csv", table + b"60,nan,inf\n", "accepted"),
        "CSV, an open quote": ("csv", table + b'60,"2.3,1000\n', "accepted"),
        "CSV, steps back": ("csv", table + table.split(b"\n", 1)[1], "accepted"),
        "CSV, huge numbers": ("csv", table + b"99999999999999999999999,1e400,-1e400\n", "accepted"),
        "CSV, negative steps": ("csv", table.replace(b"\n1,", b"\n-1,"), "accepted"),
        "CSV, UTF-16": ("csv", table.decode().encode("utf-16"), "accepted"),
        "JSON lines, whole": ("jsonl", rows, "accepted"),
        "JSON lines, one broken": ("jsonl", rows + b"{\n" + rows, "accepted"),
        "JSON lines, lists": ("jsonl", b"[1, 2]\n" * 20, "refused"),
        "JSON lines, numbers": ("jsonl", b"7\n" * 20, "refused"),
        "JSON lines, nested": ("jsonl", b'{"a": {"b": [1]}}\n' * 20, "refused"),
        "JSON lines, nulls": ("jsonl", b'{"step": null, "loss": null}\n' * 20, "refused"),
        "JSON lines, NaN": ("jsonl", rows + b'{"step": 60, "loss": NaN, "tokens_per_s": 1}\n', "accepted"),
        "JSON lines, texts for numbers": ("jsonl", rows.replace(b"1001", b'"1001"'), "accepted"),
        "JSON lines, half a character": ("jsonl", rows + b'{"step": 60, "note": "\\ud800"}\n', "accepted"),
        "TensorBoard that is none": ("tfevents.1", b"hello", "refused"),
        "TensorBoard, cut off": ("tfevents.2", b"\x18\0\0\0\0\0\0\0" + b"x" * 7, "refused"),
    }
    for number, (name, (ending, data, expected)) in enumerate(logs.items()):
        place = folder / f"{number:03d}.{ending}" if "tfevents" not in ending else folder / f"events.out.{ending}"
        place.write_bytes(data)
        words = ["import", str(place), "--out", str(folder / f"out-{number}")]
        yield Case("import", name, words, expected, (str(place),) if expected == "refused" else ())
    good = folder / "good.csv"
    good.write_bytes(table)
    taken = folder / "taken"
    taken.mkdir()
    (taken / "mine.txt").write_text("mine")
    for number, more in enumerate(
        (("--map", "rate=nothing"), ("--map", "nonsense"), ("--map", "rate=loss:parsec"), ("--config", "/nowhere"))
    ):
        yield Case(
            "import", f"option {' '.join(more)}", ["import", str(good), "--out", str(folder / f"opt-{number}"), *more], "refused"
        )
    yield Case("import", "a folder that is taken", ["import", str(good), "--out", str(taken)], "refused", (str(taken),))
    yield Case(
        "import", "no such file", ["import", str(folder / "nowhere.log"), "--out", str(folder / "o")], "refused", ("nowhere.log",)
    )
    yield Case(
        "import", "an empty folder", ["import", str(_made(folder / "bare")), "--out", str(folder / "o")], "refused", ("bare",)
    )


def _made(folder: Path) -> Path:
    folder.mkdir()
    return folder


def report_cases(folder: Path, sound: Path) -> Iterator[Case]:
    """Every case for `dflash report`: run folders."""

    def events(copy: Path) -> Path:
        return next(iter(sorted((copy / "events").glob("*.jsonl"))))

    def lines(change: Callable[[bytes], bytes]) -> Callable[[Path], object]:
        return lambda copy: events(copy).write_bytes(b"\n".join(map(change, events(copy).read_bytes().split(b"\n"))))

    def edited(change: Callable[[bytes], bytes]) -> Callable[[Path], object]:
        return lambda copy: events(copy).write_bytes(change(events(copy).read_bytes()))

    changes: dict[str, tuple[Callable[[Path], object], Verdict]] = {
        "no events folder": (lambda copy: shutil.rmtree(copy / "events"), "refused"),
        "no events": (lambda copy: events(copy).unlink(), "refused"),
        "events empty": (edited(lambda data: b""), "refused"),
        "events are prose": (edited(lambda data: b"hello\n" * 20), "refused"),
        "events are binary": (edited(lambda data: bytes(range(256)) * 20), "refused"),
        "last line torn": (edited(lambda data: data[:-25]), "accepted"),
        "a line of zeros": (edited(lambda data: data + b"\0" * 4096 + b"\n"), "accepted"),
        "every second line broken": (edited(lambda data: data.replace(b"\n", b"\n{broken\n")), "accepted"),
        "lines that are lists": (edited(lambda data: data + b"[1]\n7\nnull\n"), "accepted"),
        "events of unknown kind": (edited(lambda data: data + b'{"event":"alien","t":1}\n'), "accepted"),
        "events without a kind": (edited(lambda data: data + b'{"t":1}\n'), "accepted"),
        "lines doubled": (edited(lambda data: data * 2), "accepted"),
        "half a character": (edited(lambda data: data + b'{"event":"note","text":"\\ud800"}\n'), "accepted"),
        "no config": (lambda copy: (copy / "config.yaml").unlink(), "refused"),
        "config is no YAML": (lambda copy: (copy / "config.yaml").write_text("a: [1"), "accepted"),
        "config is binary": (lambda copy: (copy / "config.yaml").write_bytes(b"\xff\xfe\0"), "accepted"),
        "config with an unknown key": (lambda copy: (copy / "config.yaml").write_text("optim: {magic: 1}"), "accepted"),
        "no manifest": (lambda copy: (copy / "manifest.json").unlink(missing_ok=True), "accepted"),
        "manifest is no JSON": (lambda copy: (copy / "manifest.json").write_text("{"), "accepted"),
        "process is no JSON": (lambda copy: (copy / "process.json").write_text("{"), "accepted"),
        "process is a list": (lambda copy: (copy / "process.json").write_text("[1]"), "accepted"),
        "exit is no JSON": (lambda copy: (copy / "exit.json").write_text("{"), "accepted"),
        "console is binary": (lambda copy: (copy / "console.log").write_bytes(bytes(range(256))), "accepted"),
    }
    for number, (name, (change, expected)) in enumerate(changes.items()):
        copy = folder / f"run-{number}"
        shutil.copytree(sound / "runs" / "run", copy)
        change(copy)
        words = ["report", str(copy), "--out", str(folder / f"report-{number}.md")]
        yield Case("report", name, words, expected, (str(copy),) if expected == "refused" else ())
    whole = str(sound / "runs" / "run")
    for name, words in (
        ("no such run", ["report", str(folder / "nowhere"), "--out", str(folder / "r.md")]),
        ("a file", ["report", str(sound / "config.yaml"), "--out", str(folder / "r.md")]),
        ("an empty folder", ["report", str(_made(folder / "bare")), "--out", str(folder / "r.md")]),
        ("another ending", ["report", whole, "--out", str(folder / "r.pdf")]),
        ("a step below zero", ["report", whole, "--at", "-1", "--out", str(folder / "r.md")]),
        ("a step that was never made", ["report", whole, "--at", "100000", "--out", str(folder / "r.md")]),
        ("no such baseline", ["report", whole, "--baseline", str(folder / "nowhere"), "--out", str(folder / "r.md")]),
    ):
        yield Case("report", name, words, "refused")


class _Planted:
    """A pickle that would leave a file behind if anybody unpickled it."""

    def __init__(self, place: Path) -> None:
        self.place = place

    def __reduce__(self) -> tuple[Any, tuple[Any, ...]]:
        return Path.touch, (self.place,)


def _drafter_config(sound: Path) -> dict[str, Any]:
    tree: dict[str, Any] = json.loads((sound / "drafter" / "config.json").read_text())
    return tree


def eval_cases(folder: Path, sound: Path) -> Iterator[Case]:
    """Every case for `dflash eval`: drafters and data."""

    def text(name: str, content: str | bytes) -> Callable[[Path], object]:
        return lambda copy: (copy / name).write_bytes(content.encode() if isinstance(content, str) else content)

    def config(**changed: Any) -> Callable[[Path], object]:
        return text("config.json", json.dumps({**_drafter_config(sound), **changed}))

    weights = (sound / "drafter" / "model.safetensors").read_bytes()
    pickled = pickle.dumps(_Planted(folder / "planted"))
    changes: dict[str, Callable[[Path], object]] = {
        "no config": lambda copy: (copy / "config.json").unlink(),
        "config is no JSON": text("config.json", "{"),
        "config is a list": text("config.json", "[]"),
        "config is empty": text("config.json", ""),
        "config is binary": text("config.json", b"\xff\xfe\0"),
        "config without settings": text("config.json", "{}"),
        "another hidden size": config(hidden_size=96),
        "hidden size is text": config(hidden_size="wide"),
        "hidden size below zero": config(hidden_size=-128),
        "layers beyond the weights": config(num_hidden_layers=9),
        "layers is null": config(num_hidden_layers=None),
        "block size zero": config(block_size=0, dflash_config={**_drafter_config(sound)["dflash_config"], "block_size": 0}),
        "mask token is text": config(dflash_config={**_drafter_config(sound)["dflash_config"], "mask_token_id": "mask"}),
        "captures layers the target has not": config(
            dflash_config={**_drafter_config(sound)["dflash_config"], "target_layer_ids": [99]}
        ),
        "dflash_config is a list": config(dflash_config=[1]),
        "no weights": lambda copy: (copy / "model.safetensors").unlink(),
        "weights empty": text("model.safetensors", b""),
        "weights cut off": text("model.safetensors", weights[: len(weights) // 2]),
        "weights with a broken head": text("model.safetensors", b"\xff" * 16 + weights[16:]),
        "weights with an endless head": text("model.safetensors", b"\xff" * 7 + b"\x7f" + weights[8:]),
        "weights are text": text("model.safetensors", "hello"),
        "weights are a pickle": text("model.safetensors", pickled),
        "only a pickle": lambda copy: (text("pytorch_model.bin", pickled)(copy), (copy / "model.safetensors").unlink()),
    }
    for number, (name, change) in enumerate(changes.items()):
        copy = folder / f"drafter-{number}"
        shutil.copytree(sound / "drafter", copy)
        change(copy)
        yield Case("eval", name, ["eval", str(copy), "--data", str(sound / "data"), "--limit", "1"], "refused", (str(copy),))
    whole = ["eval", str(sound / "drafter"), "--limit", "1"]
    for name, place in _damaged_data(folder, sound):
        yield Case("eval", f"data set: {name}", [*whole, "--data", str(place)], "refused", (str(place),))
    for name, words in (
        ("no such drafter", ["eval", str(folder / "nowhere")]),
        ("an empty folder", ["eval", str(_made(folder / "bare"))]),
        ("a file", ["eval", str(sound / "config.yaml")]),
        ("no such target", [*whole, "--target", str(folder / "nowhere"), "--data", str(sound / "data")]),
        ("another target", [*whole, "--target", "qwen3_5-tiny", "--data", str(sound / "data")]),
        ("a limit of none", [*whole, "--limit", "0"]),
        ("a temperature below zero", [*whole, "--temperature", "-1"]),
        ("no tokens", [*whole, "--max-new-tokens", "0"]),
        ("no such device", [*whole, "--device", "abacus", "--data", str(sound / "data")]),
    ):
        yield Case("eval", name, words, "refused")
