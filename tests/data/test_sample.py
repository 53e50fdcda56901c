"""The sample corpus: what is taken from a source, and what is written."""

from __future__ import annotations

import ast
import gzip
import io
import sysconfig
from concurrent.futures.process import BrokenProcessPool
from contextlib import nullcontext
from pathlib import Path

import orjson
import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st

from dflash.data.documented import pairs_of, read_source
from dflash.data.sample import find_sources, write_sample_corpus
from dflash.errors import RefusedInput, RunFailed

MODULE = '''\
"""Module docs are not asked for."""
import functools


@functools.cache
def area(width: float,
         height: float) -> float:
    """The area of a rectangle.

        Indented example.

    Done.
    """

    # multiply
    return width * height


class Outer(Base):
    """Holds others."""  # noqa

    size = 3

    class Inner:
        """Deep inside."""

        def method(self):
            \'\'\'Says "hi".\'\'\'
            return """
text at the margin
"""

    async def fetch(self):
        """Wait for it."""
        await self.size


def undocumented():
    return 1


def only_docs():
    """Nothing but this."""


def protocol():
    """Nothing but this and dots."""
    ...


def one_line(): "Shortest."; return 1


if True:
    def guarded(ä="ü"): "ö"; return ä
'''


def by_name(text: str) -> dict[str, tuple[str, str]]:
    pairs = pairs_of(text, "pkg.mod")
    assert pairs is not None
    return {pair.qualname: (pair.request, pair.answer) for pair in pairs}


def write_tree(root: Path) -> Path:
    package = root / "pkg"
    (package / "tests").mkdir(parents=True)
    (package / "__init__.py").write_text('def top():\n    """Top."""\n    return 0\n')
    (package / "mod.py").write_text(MODULE, encoding="utf-8")
    (package / "copy.py").write_text(MODULE, encoding="utf-8")
    (package / "broken.py").write_text('def f(:\n    """No."""\n')
    (package / "latin.py").write_bytes('# -*- coding: latin-1 -*-\ndef l():\n    """é."""\n    return "é"\n'.encode("latin-1"))
    (package / "undeclared.py").write_bytes('def u():\n    """é."""\n    return 1\n'.encode("latin-1"))
    (package / "surrogate.py").write_text('def s():\n    """\\ud800."""\n    return 1\n')
    (package / "tests" / "test_mod.py").write_text('def t():\n    """Test."""\n    return 5\n')
    (root / "single.py").write_text('def alone():\r\n    """Alone."""\r\n    return 9\r\n')
    return root


def rows_of(path: Path) -> list[dict]:
    return [orjson.loads(line) for line in path.read_bytes().splitlines()]


def test_the_answer_is_the_source_without_that_docstring_and_with_its_decorators():
    request, answer = by_name(MODULE)["area"]
    assert answer == (
        "@functools.cache\ndef area(width: float,\n         height: float) -> float:\n    # multiply\n    return width * height"
    )
    assert request.endswith(
        "\n\ndef area(width: float,\n         height: float) -> float:\n\nThe area of a rectangle.\n\n    Indented example.\n\nDone."
    )


def test_methods_nested_classes_and_coroutines_stand_alone_at_the_left_margin():
    found = by_name(MODULE)
    assert found["Outer.fetch"][1] == "async def fetch(self):\n    await self.size"
    assert found["Outer.Inner.method"][1] == 'def method(self):\n    return """\ntext at the margin\n"""'
    assert found["Outer.Inner"][1].startswith("class Inner:\n    def method(self):\n        '''Says \"hi\".'''")
    assert found["Outer"][1].startswith("class Outer(Base):\n    size = 3\n")
    assert '"""Deep inside."""' in found["Outer"][1]  # only its own docstring goes


def test_a_docstring_on_the_line_of_its_def_is_taken_out_of_that_line():
    found = by_name(MODULE)
    assert found["one_line"][1] == "def one_line(): return 1"
    assert found["guarded"] == (found["guarded"][0], 'def guarded(ä="ü"): return ä')


def test_what_has_no_docs_or_nothing_but_docs_gives_no_pair():
    assert not {"undocumented", "only_docs", "protocol"} & set(by_name(MODULE))


def test_a_text_that_is_no_python_gives_none():
    assert pairs_of("def f(:", "m") is None
    assert pairs_of("x = 1\0", "m") is None


def test_on_the_standard_library_the_answers_parse_to_the_tree_without_the_docstring():
    """Independent oracle: `ast` removes the docstring from the tree, we remove it from the text; both must mean the same."""
    checked = 0
    for name in (
        "argparse",
        "collections/__init__",
        "dataclasses",
        "fractions",
        "inspect",
        "subprocess",
        "typing",
        "asyncio/streams",
    ):
        text = read_source(Path(sysconfig.get_path("stdlib")) / f"{name}.py")
        assert text is not None
        nodes = {}
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
                nodes[node.lineno] = node
        for pair in pairs_of(text, name):
            expected = nodes[pair.line]  # a class comes before its methods, whose docstrings are still in place then
            expected.body = expected.body[1:]
            (answered,) = ast.parse(pair.answer).body
            if not any("\n" in n.value for n in ast.walk(expected) if isinstance(n, ast.Constant) and isinstance(n.value, str)):
                assert ast.dump(answered) == ast.dump(expected), (name, pair.qualname)
                checked += 1
    assert checked > 250


@given(
    head=st.text("ab \n#é", max_size=20),
    quote=st.sampled_from(['"""', "'''"]),
    doc=st.text("xyzé \n", min_size=1, max_size=30).filter(str.strip),
    body=st.lists(st.sampled_from(["return 1", "x = 'é'", "# note", "pass", "y = (1,\n      2)"]), min_size=1, max_size=4),
)
def test_any_layout_around_the_docstring_leaves_a_body_that_parses(head, quote, doc, body):
    lines = [f"def f():  # {head.replace(chr(10), '')}", f"    {quote}{doc}{quote}", *(f"    {item}" for item in body)]
    text = "\n".join(lines)
    tree = ast.parse(text).body[0]
    pairs = pairs_of(text, "m")
    rest = tree.body[1:]
    if all(isinstance(node, ast.Pass) for node in rest):
        assert pairs == []
    else:
        tree.body = rest
        assert ast.dump(ast.parse(pairs[0].answer).body[0]) == ast.dump(tree)


def test_the_corpus_has_each_answer_once_and_counts_what_it_skips(tmp_path):
    out = tmp_path / "corpus.jsonl"
    report = write_sample_corpus(out, roots=[write_tree(tmp_path / "site")], progress=False)
    rows = rows_of(out)
    assert report.rows == len(rows) == len({row["messages"][1]["content"] for row in rows})
    assert report.files == 8  # the tests folder is left out
    assert report.skipped == 2  # broken.py and undeclared.py
    assert report.duplicates == 7  # every pair of mod.py again in copy.py
    assert report.rows_by_package == {"pkg": report.rows - 1, "single": 1}
    sources = {row["source"] for row in rows}
    assert {"pkg:pkg.top", "pkg:pkg.latin.l", "single:single.alone"} <= sources
    assert any(row["messages"][1]["content"].endswith('return "é"') for row in rows)
    assert all([m["role"] for m in row["messages"]] == ["user", "assistant"] for row in rows)
    assert not list(tmp_path.glob("*.tmp"))


def test_the_same_seed_gives_the_same_bytes_whatever_the_workers(tmp_path):
    root = write_tree(tmp_path / "site")
    for i in range(60):
        (root / "pkg" / f"many{i}.py").write_text(f'def f{i}():\n    """Doc {i}."""\n    return {i}\n')
    one, two, other = (tmp_path / f"{name}.jsonl" for name in ("one", "two", "other"))
    write_sample_corpus(one, roots=[root], progress=False, workers=1)
    write_sample_corpus(two, roots=[root], progress=False, workers=2)
    write_sample_corpus(other, roots=[root], progress=False, workers=1, seed=1)
    assert one.read_bytes() == two.read_bytes()
    assert one.read_bytes() != other.read_bytes()


def test_a_limit_gives_the_first_rows_of_the_whole_corpus(tmp_path):
    root = write_tree(tmp_path / "site")
    whole, part = tmp_path / "whole.jsonl", tmp_path / "part.jsonl"
    write_sample_corpus(whole, roots=[root], progress=False)
    assert write_sample_corpus(part, roots=[root], limit=4, progress=False).rows == 4
    assert rows_of(part) == rows_of(whole)[:4]


def test_one_more_package_moves_no_other_file(tmp_path):
    root = write_tree(tmp_path / "site")
    before = find_sources([root])
    (root / "zz_new.py").write_text("")
    after = [source for source in find_sources([root]) if source.package != "zz_new"]
    assert after == before


def test_the_name_decides_the_compression(tmp_path):
    root = write_tree(tmp_path / "site")
    plain, zipped, zstd = (tmp_path / f"c.jsonl{end}" for end in ("", ".gz", ".zst"))
    for out in (plain, zipped, zstd):
        write_sample_corpus(out, roots=[root], progress=False)
    assert gzip.decompress(zipped.read_bytes()) == plain.read_bytes()
    assert zstandard.ZstdDecompressor().stream_reader(io.BytesIO(zstd.read_bytes())).read() == plain.read_bytes()


def test_a_limited_corpus_of_the_installed_packages_mixes_many_of_them(tmp_path):
    report = write_sample_corpus(tmp_path / "c.jsonl", limit=300, progress=False)
    assert report.rows == 300
    assert len(report.rows_by_package) >= 8
    assert max(report.rows_by_package.values()) < 150


@pytest.mark.parametrize(
    ("name", "limit", "word"), [("c.txt", None, "name it"), ("c.jsonl", 0, "limit 0"), ("file/c.jsonl", None, "can't be")]
)
def test_an_unusable_request_is_refused(tmp_path, name, limit, word):
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(RefusedInput, match=word):
        write_sample_corpus(tmp_path / name, limit=limit, roots=[write_tree(tmp_path / "site")], progress=False)


def test_roots_without_documented_source_are_refused_and_leave_no_file(tmp_path):
    (tmp_path / "empty").mkdir()
    out = tmp_path / "c.jsonl"
    with pytest.raises(RefusedInput, match="no documented Python"):
        write_sample_corpus(out, roots=[tmp_path / "empty"], progress=False)
    assert list(tmp_path.iterdir()) == [tmp_path / "empty"]


def test_a_full_disk_stops_with_the_remedy_and_keeps_the_old_file(tmp_path, monkeypatch):
    out = tmp_path / "c.jsonl"
    out.write_text("old\n")
    root = write_tree(tmp_path / "site")

    class Full(io.BytesIO):
        def write(self, data):
            raise OSError(28, "No space left on device")

    monkeypatch.setattr("dflash.data.sample._compressor", lambda suffix, raw: nullcontext(Full()))
    with pytest.raises(RunFailed, match=r"No space left on device.*free some space"):
        write_sample_corpus(out, roots=[root], progress=False)
    monkeypatch.undo()
    assert out.read_text() == "old\n"


def test_a_killed_parser_is_reported_and_leaves_no_file(tmp_path, monkeypatch):
    def killed(sources, workers):
        raise BrokenProcessPool("A process in the process pool was terminated abruptly")
        yield

    monkeypatch.setattr("dflash.data.sample._extract_all", killed)
    with pytest.raises(RunFailed, match="parsing process"):
        write_sample_corpus(tmp_path / "c.jsonl", roots=[write_tree(tmp_path / "site")], progress=False)
    assert not list(tmp_path.glob("c.jsonl*"))
