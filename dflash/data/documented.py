"""Documented Python as question and answer: the signature and docstring of a function or class, and its source without it.

The source is parsed with `ast` for where things stand and cut as text, so comments and layout of the answer are the author's own.
The whole definition moves to the left margin; so do lines of strings inside it that had the margin, as when one dedents by hand.
"""

from __future__ import annotations

import ast
import hashlib
import io
import os
import tokenize
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

MAX_SOURCE_BYTES = 2 * 2**20
"""Larger sources are generated tables; parsing one takes hundreds of megabytes."""

_REQUESTS = (
    "Write the {kind} `{name}` for `{module}`.",
    "Please implement the {kind} `{name}` of the module `{module}`.",
    "I need the {kind} `{name}` in `{module}`. It should do what its documentation says.",
    "Here is the documentation of the {kind} `{name}` in `{module}`. Show me the source.",
    "How is the {kind} `{name}` of `{module}` implemented?",
    "Complete the {kind} `{name}` from `{module}`.",
)
_Documented = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef


class Pair(NamedTuple):
    """One documented function or class: what is asked and what the source answers."""

    qualname: str
    line: int
    request: str
    answer: str


def read_source(path: str | Path) -> str | None:
    """The text of a Python file in its declared encoding, newlines as \\n; None when it can't be read or decoded."""
    try:
        if os.path.getsize(path) > MAX_SOURCE_BYTES:
            return None
        raw = Path(path).read_bytes()
        encoding, _ = tokenize.detect_encoding(io.BytesIO(raw).readline)
        text = raw.decode(encoding)
    except (OSError, SyntaxError, UnicodeDecodeError, LookupError):
        return None
    return text.replace("\r\n", "\n").replace("\r", "\n")


def pairs_of(text: str, module: str) -> list[Pair] | None:
    """The documented functions and classes of one module, by line; None when the text is no Python.

    Methods and nested classes count on their own as well; functions inside functions don't (they say little alone).
    """
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # old escapes and `is 1` in other people's code
            tree = ast.parse(text)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None
    lines = text.split("\n")
    pairs = []
    for qualname, node in _documented(tree, ""):
        docstring = ast.get_docstring(node)
        answer = _without_docstring(lines, node) if docstring and docstring.strip() else None
        if docstring and answer:
            request = _request(module, qualname, _signature(lines, node), docstring, is_class=isinstance(node, ast.ClassDef))
            pairs.append(Pair(qualname, node.lineno, request, answer))
    return pairs


def _documented(parent: ast.AST, prefix: str) -> Iterator[tuple[str, _Documented]]:
    for node in ast.iter_child_nodes(parent):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            yield prefix + node.name, node
            if isinstance(node, ast.ClassDef):
                yield from _documented(node, f"{prefix}{node.name}.")
        elif isinstance(node, ast.If | ast.Try | ast.With):
            yield from _documented(node, prefix)


def _cut(line: str, column: int) -> tuple[str, str]:
    """Split a line at one of `ast`'s columns, which count UTF-8 bytes."""
    if line.isascii():
        return line[:column], line[column:]
    raw = line.encode()
    return raw[:column].decode(), raw[column:].decode()


def _without_docstring(lines: list[str], node: _Documented) -> str | None:
    """The source of `node`, decorators included, moved to the left margin; None when nothing but the docstring was in it."""
    if all(isinstance(item, ast.Pass) or _is_ellipsis(item) for item in node.body[1:]):
        return None
    first = min([node.lineno, *(decorator.lineno for decorator in node.decorator_list)]) - 1
    doc = node.body[0]
    end = (doc.end_lineno or doc.lineno) - 1
    head, _ = _cut(lines[doc.lineno - 1], doc.col_offset)
    _, tail = _cut(lines[end], doc.end_col_offset or 0)
    tail = tail.strip()
    if tail and not tail.startswith(("#", ";")):
        return None  # a docstring in parentheses or continued by a backslash: rare, and not worth a parser of our own
    rest = tail[1:].lstrip() if tail.startswith(";") else ""
    body = lines[end + 1 : node.end_lineno]
    if not rest and not head.strip():
        while body and not body[0].strip():
            body = body[1:]
    else:
        body = [(head + rest).rstrip(), *body]
    margin = _cut(lines[node.lineno - 1], node.col_offset)[0]
    kept = [*lines[first : doc.lineno - 1], *body]
    return "\n".join(line.removeprefix(margin) for line in kept).rstrip()


def _is_ellipsis(node: ast.stmt) -> bool:
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and node.value.value is Ellipsis


def _signature(lines: list[str], node: _Documented) -> str:
    """The text from `def` or `class` up to the docstring, at the left margin."""
    doc = node.body[0]
    margin, _ = _cut(lines[node.lineno - 1], node.col_offset)
    head, _ = _cut(lines[doc.lineno - 1], doc.col_offset)
    kept = [*lines[node.lineno - 1 : doc.lineno - 1], head]
    return "\n".join(line.removeprefix(margin) for line in kept).rstrip()


def _request(module: str, qualname: str, signature: str, docstring: str, *, is_class: bool) -> str:
    choice = hashlib.blake2b(f"{module}.{qualname}".encode(errors="replace"), digest_size=2).digest()
    kind = "class" if is_class else "method" if "." in qualname else "function"
    opening = _REQUESTS[int.from_bytes(choice) % len(_REQUESTS)].format(kind=kind, name=qualname, module=module)
    return f"{opening}\n\n{signature}\n\n{docstring}"
