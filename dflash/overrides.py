"""What users type to change settings: `section.key=value` taken apart, and what is wrong with a setting put into words."""

from __future__ import annotations

import difflib
from typing import Any

import yaml

from dflash.errors import RefusedInput


def parse_override(text: str) -> tuple[str, str, Any]:
    """Split `section.key=value` into its parts, the value read as YAML.

    Raises:
        RefusedInput: the text has another form, or its value is not YAML.
    """
    name, equals, value = text.partition("=")
    section, dot, key = name.strip().partition(".")
    if not (equals and dot and section and key):
        raise RefusedInput(f"--set {text}: expected section.key=value, as in optim.lr=3e-4")
    try:
        parsed = yaml.safe_load(value)
    except yaml.YAMLError as error:
        raise RefusedInput(f"--set {text}: the value is not YAML: {error}") from error
    if isinstance(parsed, str) and _is_number(parsed):  # YAML 1.1 reads 3e-4 as text
        parsed = float(parsed)
    return section, key, parsed


def explain(place: str, item: Any, known: list[str]) -> str:
    """One of pydantic's errors in words: where, what, and the nearest of the `known` keys where one is unknown."""
    key = ".".join(str(part) for part in item["loc"])
    if item["type"] == "extra_forbidden":
        near = difflib.get_close_matches(key, known, n=1)
        return f"{place}: unknown key {key}" + (f"; did you mean {near[0]}?" if near else "")
    if item["type"] == "missing":
        return f"{place}: {key} is missing; every run needs it"
    message = item["msg"].removeprefix("Value error, ")
    where = f"{key}: " if key else ""
    given = "" if item["type"] == "value_error" else f" (given: {item['input']!r})"
    return f"{place}: {where}{message}{given}"


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return text.lower().lstrip("+-") not in ("nan", "inf", "infinity")
