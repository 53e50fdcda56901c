"""Bad input for `dflash prepare`: rows, files, folders and options."""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import zstandard

from tests.corpus.cases import Case, Verdict

_ASK, _SAY = {"role": "user", "content": "what is it"}, {"role": "assistant", "content": "it is a pool"}
_GOOD = {"messages": [_ASK, _SAY]}
_CALL = {"function": {"name": "f", "arguments": {}}}


def _chat(*messages: Any, **more: Any) -> dict[str, Any]:
    return {"messages": list(messages), **more}


def _say(content: Any, **more: Any) -> dict[str, Any]:
    return {"role": "assistant", "content": content, **more}


# name: (the row, whether it can be kept)
ROWS: dict[str, tuple[Any, bool]] = {
    "number": (7, False),
    "string": ("hello", False),
    "null": (None, False),
    "list of numbers": ([1, 2], False),
    "list of messages": ([_ASK, _SAY], True),
    "empty object": ({}, False),
    "unknown keys": ({"tweet": "x"}, False),
    "prompt without answer": ({"prompt": "x"}, False),
    "all keys null": ({"messages": None, "text": None}, False),
    "no messages": (_chat(), False),
    "messages is a number": ({"messages": 3}, False),
    "messages is plain text": ({"messages": "hello"}, False),
    "messages is JSON text": ({"messages": json.dumps([_ASK, _SAY])}, True),
    "messages is broken JSON text": ({"messages": json.dumps([_ASK, _SAY])[:-1]}, False),
    "messages is an object of lists": ({"messages": {"role": ["user", "assistant"], "content": ["a b", "c d"]}}, True),
    "object of lists of unequal lengths": ({"messages": {"role": ["user"], "content": ["a", "b"]}}, False),
    "message is a string": (_chat(_ASK, "hello"), False),
    "message is null": (_chat(_ASK, None), False),
    "message is a list": (_chat([_ASK], _SAY), False),
    "no role": (_chat(_ASK, {"content": "x"}), False),
    "role is a number": (_chat(_ASK, {"role": 3, "content": "x"}), False),
    "unknown role": (_chat(_ASK, {"role": "alien", "content": "x"}), False),
    "role in capitals": (_chat({**_ASK, "role": " USER"}, _SAY), True),
    "no content": (_chat(_ASK, {"role": "assistant"}), False),
    "content null": (_chat(_ASK, _say(None)), False),
    "content a number": (_chat(_ASK, _say(3)), False),
    "content an object": (_chat(_ASK, _say({"deep": 1})), False),
    "content empty": (_chat(_ASK, _say("")), False),
    "content white space": (_chat(_ASK, _say(" \n\t")), False),
    "question empty": (_chat({**_ASK, "content": ""}, _SAY), False),
    "only the user": (_chat(_ASK), False),
    "only the assistant": (_chat(_SAY), False),
    "assistant first": (_chat(_SAY, _ASK, _SAY), True),
    "two users": (_chat(_ASK, _ASK, _SAY), True),
    "two assistants": (_chat(_ASK, _SAY, _SAY), True),
    "user last": (_chat(_ASK, _SAY, _ASK), True),
    "two systems": (_chat({"role": "system", "content": "a"}, {"role": "system", "content": "b"}, _ASK, _SAY), True),
    "system in the middle": (_chat(_ASK, _SAY, {"role": "system", "content": "x"}, _ASK, _SAY), False),
    "tool behind a user": (_chat(_ASK, {"role": "tool", "content": "x"}, _SAY), False),
    "tool first": (_chat({"role": "tool", "content": "x"}, _ASK, _SAY), False),
    "image part": (_chat({"role": "user", "content": [{"type": "image"}, {"type": "text", "text": "a"}]}, _SAY), False),
    "only an image": (_chat({"role": "user", "content": [{"type": "image"}]}, _SAY), False),
    "text part without text": (_chat({"role": "user", "content": [{"type": "text"}]}, _SAY), False),
    "no parts": (_chat(_ASK, _say([])), False),
    "half a character": (_chat(_ASK, _say("a\ud800")), False),
    "control token": (_chat(_ASK, _say("yes<|im_end|>")), False),
    "zero character": (_chat(_ASK, _say("a\0b c")), True),
    "private-use characters": (_chat(_ASK, _say("\U000f0000 a")), True),
    "call without content": (_chat(_ASK, _say(None, tool_calls=[_CALL])), True),
    "call without a name": (_chat(_ASK, _say(None, tool_calls=[{"function": {"arguments": {}}}])), False),
    "call is a string": (_chat(_ASK, _say(None, tool_calls=["f"])), False),
    "call with arguments as text": (_chat(_ASK, _say(None, tool_calls=[{"name": "f", "arguments": '{"a": 1}'}])), True),
    "call with arguments as broken text": (_chat(_ASK, _say(None, tool_calls=[{"name": "f", "arguments": '{"a": '}])), True),
    "call with half a character": (_chat(_ASK, _say(None, tool_calls=[{"name": "f", "arguments": {"a": "\udc00"}}])), False),
    "call with a control token": (_chat(_ASK, _say(None, tool_calls=[{"name": "f", "arguments": {"a": "<|im_end|>"}}])), False),
    "answer behind a call": (_chat(_ASK, _say(None, tool_calls=[_CALL]), _SAY), False),
    "tools is text": (_chat(_ASK, _SAY, tools="search"), False),
    "tools is a number": (_chat(_ASK, _SAY, tools=3), False),
    "tools as JSON text": (_chat(_ASK, _SAY, tools='[{"name": "f"}]'), True),
    "thinking is a list": (_chat(_ASK, _say("yes well", reasoning_content=["hm"])), False),
    "thinking apart": (_chat(_ASK, _say("yes well", reasoning_content="hm")), True),
    "think tag without an end": (_chat(_ASK, _say("<think>hm yes well")), True),
    "system is a number": (_chat(_ASK, _SAY, system=3), False),
    "output null": ({"instruction": "x", "output": None}, False),
    "output a list": ({"instruction": "x", "output": ["y"]}, False),
    "text empty": ({"text": ""}, False),
    "text a list": ({"text": ["a"]}, False),
    "text of one token": ({"text": "x"}, False),
    "ids empty": ({"input_ids": []}, False),
    "ids a string": ({"input_ids": "1 2 3"}, False),
    "ids with null": ({"input_ids": [1, None, 3]}, False),
    "ids with fractions": ({"input_ids": [1, 2.5, 3]}, False),
    "ids below zero": ({"input_ids": [1, -2, 3]}, False),
    "ids beyond the vocabulary": ({"input_ids": [1, 10**9, 3]}, False),
    "ids beyond 64 bits": ({"input_ids": [1, 10**30, 3]}, False),
    "ids nested": ({"input_ids": [[1, 2, 3]]}, False),
    "mask of another length": ({"input_ids": [1, 2, 3], "loss_mask": [1, 1]}, False),
    "mask of twos": ({"input_ids": [1, 2, 3], "loss_mask": [1, 1, 2]}, False),
    "mask of zeros": ({"input_ids": [1, 2, 3], "loss_mask": [0, 0, 0]}, False),
    "mask null": ({"input_ids": [1, 2, 3], "loss_mask": None}, True),
    "nested a hundred deep": (_chat(_ASK, _SAY, meta=json.loads("[" * 100 + "]" * 100)), True),
    "very many keys": ({**_GOOD, **{f"k{n}": n for n in range(5000)}}, True),
}

# name: (a line as it stands in the file, whether it can be kept)
LINES: dict[str, tuple[bytes, bool]] = {
    "cut short": (b'{"messages": [', False),
    "no quotes": (b"{text: hello there}", False),
    "single quotes": (b"{'text': 'hello there'}", False),
    "two values": (b'{"text": "hello there"} {"text": "more"}', False),
    "comma behind": (b'{"text": "hello there"},', False),
    "not UTF-8": (b'{"text": "hello \xff\xfe there"}', False),
    "half a character, escaped": (b'{"text": "hello \\ud800 there"}', False),
    "zero bytes": (b"\0\0\0\0", False),
    "zero byte in a string": (b'{"text": "hello\0there"}', False),
    "tab in a string": (b'{"text": "hello\tthere"}', False),
    "NaN": (b'{"text": "hello there", "score": NaN}', True),
    "number too long": (b'{"text": "hello there", "n": ' + b"9" * 5000 + b"}", False),
    "key twice": (b'{"text": "", "text": "hello there"}', True),
    "nested too deep": (b"[" * 100_000, False),
    "HTML": (b"<html><body>404 not found</body></html>", False),
    "git-lfs pointer": (b"version https://git-lfs.github.com/spec/v1", False),
    "merge conflict": (b"<<<<<<< HEAD", False),
}


def prepare_cases(folder: Path, sound: Path) -> Iterator[Case]:
    """Every case for `dflash prepare`."""
    yield from _rows(folder)
    yield from _files(folder)
    yield from _arrays(folder)
    yield from _tables(folder)
    yield from _options(folder)


def _case(folder: Path, name: str, file: Path, expected: Verdict, rejected: tuple[int, ...] | None = None, *more: str) -> Case:
    out = folder / "out" / f"{len(list((folder).iterdir()))}-{file.name}"
    words = ["prepare", str(file), "--out", str(out), "--workers", "1", *more]
    words += [] if "--tokenizer" in more else ["--tokenizer", "qwen3-tiny"]
    return Case("prepare", name, words, expected, (str(file),) if expected == "refused" and not more else (), rejected)


def _written(folder: Path, name: str, data: bytes) -> Path:
    place = folder / f"{len(list(folder.iterdir())):03d}-{name}"
    place.write_bytes(data)
    return place


def _rows(folder: Path) -> Iterator[Case]:
    good = json.dumps(_GOOD).encode()
    lines = {name: (json.dumps(row).encode(), kept) for name, (row, kept) in ROWS.items()} | LINES
    for name, (line, kept) in lines.items():
        file = _written(folder, "row.jsonl", b"\n".join([good, line, good, b""]))
        yield _case(folder, f"row: {name}", file, "accepted", () if kept else (2,))
    second = 2 + len(json.dumps(_GOOD, indent=1).split("\n"))  # the line where the second item of a pretty-printed array begins
    for number, (name, (row, kept)) in enumerate(ROWS.items()):
        pretty = bool(number % 2)
        file = _written(folder, "row.json", json.dumps([_GOOD, row, _GOOD], indent=1 if pretty else None).encode())
        yield _case(folder, f"item of an array: {name}", file, "accepted", () if kept else (second if pretty else 1,))


def _files(folder: Path) -> Iterator[Case]:
    good = json.dumps(_GOOD).encode() + b"\n"
    text = (good * 3).decode()
    for encoding in ("utf-8-sig", "utf-16", "utf-16-le", "utf-16-be", "utf-32"):
        for ending in ("jsonl", "json"):
            yield _case(folder, f"written in {encoding}", _written(folder, f"a.{ending}", text.encode(encoding)), "accepted", ())
    for name, data, rejected in (
        ("Windows line ends", good.replace(b"\n", b"\r\n") * 3, ()),
        ("no last line end", (good * 3).rstrip(), ()),
        ("blank lines", b"\n\n" + good + b" \n\n" + good, ()),
        ("zero bytes at the end, as a crash leaves them", good + b"\0" * 4096, (2,)),
        ("old Macintosh line ends", good + good.replace(b"\n", b"\r") * 3, (2,)),
        ("array under .jsonl", json.dumps([_GOOD, _GOOD]).encode(), ()),
        ("pretty-printed objects under .jsonl", json.dumps(_GOOD, indent=1).encode() * 2, ()),
        ("torn last line", good + good[:30], (2,)),
    ):
        yield _case(folder, name, _written(folder, "a.jsonl", data), "accepted", rejected)
        yield _case(folder, f"{name}, gzip", _written(folder, "a.jsonl.gz", gzip.compress(data)), "accepted", rejected)
    packed, squeezed = gzip.compress(good * 50), zstandard.compress(good * 50)
    for name, ending, data in (
        ("empty", "jsonl", b""),
        ("blank", "jsonl", b" \n\n"),
        ("empty", "json", b""),
        ("empty array", "json", b"[]"),
        ("empty", "parquet", b""),
        ("only broken lines", "jsonl", b"{\n" * 5),
        ("binary", "jsonl", bytes(range(256)) * 20),
        ("a picture", "json", b"\x89PNG\r\n\x1a\n" + bytes(99)),
        ("HTML", "json", b"<html></html>"),
        ("one word", "json", b"hello"),
        ("not packed", "jsonl.gz", good),
        ("not packed", "jsonl.zst", good),
        ("cut off", "jsonl.gz", packed[:-9]),
        ("cut off", "jsonl.zst", squeezed[:-9]),
        ("a byte turned", "jsonl.gz", packed[:20] + bytes([packed[20] ^ 255]) + packed[21:]),
        ("a byte turned", "jsonl.zst", squeezed[:12] + bytes([squeezed[12] ^ 255]) + squeezed[13:]),
        ("cut off UTF-16", "jsonl", text.encode("utf-16")[:-1]),
        ("half a character in UTF-16", "jsonl", text.encode("utf-16") + b"\x00\xd8\x00\xd8"),
        ("unknown ending", "txt", good),
        ("unknown ending", "csv", b"a,b\n1,2\n"),
    ):
        yield _case(folder, f"{name}: .{ending}", _written(folder, f"a.{ending}", data), "refused")
    (folder / "bare").mkdir()
    (folder / "only-a-readme").mkdir()
    (folder / "only-a-readme" / "README.md").write_text("hello")
    for name in ("bare", "only-a-readme", "missing.jsonl"):
        yield _case(folder, f"folder or file: {name}", folder / name, "refused")
    (folder / "dangling.jsonl").symlink_to(folder / "nowhere")
    yield _case(folder, "link to nothing", folder / "dangling.jsonl", "refused")
    (folder / "loop").mkdir()
    (folder / "loop" / "again").symlink_to(folder / "loop")
    (folder / "loop" / "a.jsonl").write_bytes(good)
    yield _case(folder, "folder with a link to itself", folder / "loop", "refused")
    for name in ("with space.jsonl", "h\u00e9\U0001f98a.jsonl", "new\nline.jsonl", "[bold]red.jsonl", "-dash.jsonl"):
        (folder / name).write_bytes(good)
        yield _case(folder, f"name: {name!r}", folder / name, "accepted", ())


def _arrays(folder: Path) -> Iterator[Case]:
    pretty = json.dumps([_GOOD] * 3, indent=1)
    lines = pretty.split("\n")
    starts = [number for number, line in enumerate(lines, 1) if line == " {"]
    second = starts[1]
    for name, text, rejected in (
        ("a missing quote", pretty.replace('what is it"', "what is it", 2).replace("what is it", 'what is it"', 1), (second,)),
        ("a missing bracket", "\n".join(line for n, line in enumerate(lines, 1) if n != second + 10), (second,)),
        ("a missing comma between rows", pretty.replace(" },\n {", " }\n {"), ()),
        ("a comma behind the last row", pretty[:-2] + ",\n]", ()),
        ("no end", pretty[:-2], (len(lines) - 1,)),
        ("a word in the place of a value", pretty.replace('"what is it"', "what", 1), (starts[0],)),
        ("cut in the last row", "\n".join(lines[: starts[2] + 2]), (starts[2],)),
        ("a second end", pretty + "\n]", (len(lines) + 1,)),
        ("Windows line ends", pretty.replace("\n", "\r\n"), ()),
        ("a mark before it", "\ufeff" + pretty, ()),
        ("an object around it", '{"version": 1,\n"data": ' + pretty + "}", ()),
        ("two lists in an object", '{"train": ' + pretty + ', "data": ' + pretty + "}", ()),
        ("an object around it without an end", '{"data": ' + pretty, (len(lines),)),
        ("an array of arrays", json.dumps([[_ASK, _SAY]] * 2), ()),
        ("one chat as an array", json.dumps([_ASK, _SAY]), ()),
        ("one chat as an object", json.dumps(_GOOD, indent=2), ()),
        ("JSON lines", json.dumps(_GOOD) + "\n" + json.dumps(_GOOD), ()),
        ("JSON lines, one broken", "\n".join([json.dumps(_GOOD), "{", json.dumps(_GOOD)]), (2,)),
    ):
        for ending in ("json", "json.gz", "json.zst"):
            data = text.encode()
            data = gzip.compress(data) if ending.endswith("gz") else zstandard.compress(data) if ending.endswith("zst") else data
            yield _case(folder, f"array with {name}: .{ending}", _written(folder, f"a.{ending}", data), "accepted", rejected)


def _tables(folder: Path) -> Iterator[Case]:
    good = json.dumps([_ASK, _SAY])
    for name, columns, rejected in (
        ("messages as JSON text", {"messages": [good, good]}, ()),
        ("conversations as JSON text", {"conversations": [good, good]}, ()),
        ("messages as JSON bytes", {"messages": [good.encode()] * 2}, ()),
        ("one text broken", {"messages": [good, good[:-1]]}, (2,)),
        ("nulls", {"messages": [good, None]}, (2,)),
        ("lists of JSON text", {"messages": [[json.dumps(_ASK), json.dumps(_SAY)]]}, ()),
        ("an object of lists", {"messages": [{"role": ["user", "assistant"], "content": ["a b", "c d"]}]}, ()),
        ("tools of two shapes", {"messages": [good] * 2, "tools": [[{"name": "f"}], [{"name": "g", "x": 1}]]}, ()),
    ):
        place = folder / f"{len(list(folder.iterdir())):03d}-a.parquet"
        pq.write_table(pa.table(columns), place)
        yield _case(folder, f"parquet: {name}", place, "accepted", rejected)
    for name, columns in (
        ("no known column", {"tweet": ["x"]}),
        ("no rows", {"text": pa.array([], pa.string())}),
        ("numbers for messages", {"messages": [1, 2]}),
        ("only nulls", {"messages": pa.array([None, None], pa.string())}),
        ("binary text", {"text": [b"\xff\xfe"]}),
        ("dates", {"text": pa.array([0], pa.date32())}),
    ):
        place = folder / f"{len(list(folder.iterdir())):03d}-a.parquet"
        pq.write_table(pa.table(columns), place)
        yield _case(folder, f"parquet: {name}", place, "refused")
    whole = place.read_bytes()
    for name, data in (
        ("cut off", whole[:-20]),
        ("only its mark", b"PAR1PAR1"),
        ("a byte turned", whole[:-30] + b"x" + whole[-29:]),
    ):
        yield _case(folder, f"parquet: {name}", _written(folder, "a.parquet", data), "refused")
    for name, files in (
        ("state that is no JSON", {"state.json": "{", "dataset_info.json": "{}"}),
        ("state without files", {"state.json": "{}", "dataset_info.json": "{}"}),
        ("a file that is not there", {"state.json": '{"_data_files": [{"filename": "x.arrow"}]}', "dataset_info.json": "{}"}),
        (
            "a file that is no Arrow",
            {"state.json": '{"_data_files": [{"filename": "x"}]}', "dataset_info.json": "{}", "x": "hello"},
        ),
        ("splits that are no list", {"dataset_dict.json": '{"splits": 3}'}),
        ("a split that is not there", {"dataset_dict.json": '{"splits": ["train"]}'}),
    ):
        place = folder / f"{len(list(folder.iterdir())):03d}-saved"
        place.mkdir()
        for file, content in files.items():
            (place / file).write_text(content)
        yield _case(folder, f"save_to_disk: {name}", place, "refused")


def _options(folder: Path) -> Iterator[Case]:
    good = _written(folder, "good.jsonl", json.dumps(_GOOD).encode())
    template = _written(folder, "broken.jinja", b"{% for %}")
    binary = _written(folder, "binary.jinja", b"\xff\xfe\xfd")
    hostile = _written(folder, "hostile.jinja", b"{{ ''.__class__.__mro__[1].__subclasses__() }}")
    endless = _written(folder, "endless.jinja", b"{% for m in messages %}{{ m.content * 3 }}{% endfor %}")
    (folder / "no-tokenizer").mkdir()
    (folder / "broken-tokenizer").mkdir()
    (folder / "broken-tokenizer" / "tokenizer.json").write_text("{")
    for more in (
        ("--loss-on", "some"),
        ("--over-long", "drop"),
        ("--odd-turns", "keep"),
        ("--parts", "all"),
        ("--reasoning", "maybe"),
        ("--max-length", "1"),
        ("--max-length", "-5"),
        ("--max-length", "many"),
        ("--workers", "-1"),
        ("--chat-template", str(folder / "nowhere.jinja")),
        ("--chat-template", str(template)),
        ("--chat-template", str(binary)),
        ("--chat-template", str(hostile)),
        ("--chat-template", str(endless)),
        ("--tokenizer", str(folder / "nowhere")),
        ("--tokenizer", str(folder / "no-tokenizer")),
        ("--tokenizer", str(folder / "broken-tokenizer")),
        ("--tokenizer", "qwen-giant"),
    ):
        yield _case(folder, f"option {' '.join(more)}".replace(str(folder), ""), good, "refused", None, *more)
