"""What users type to change settings: `section.key=value` taken apart, and what is wrong with a setting put into words."""

from __future__ import annotations

import difflib
import math
from collections.abc import Sequence
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


def read_weights(given: Any, known: Sequence[str]) -> dict[str, float]:
    """A name, or a mapping of names to weights, as the mapping.

    Raises:
        ValueError: something else, an unknown name, a weight that is negative or not finite, or none above 0.
    """
    weights = {given: 1.0} if isinstance(given, str) else given
    if not isinstance(weights, dict):
        raise ValueError(f"{given!r} is neither a name nor a mapping of names to weights; the names are {', '.join(known)}")
    read: dict[str, float] = {}
    for name, weight in weights.items():
        if name not in known:
            near = difflib.get_close_matches(str(name), known, n=1)
            raise ValueError(f"there is no {name!r}" + (f", did you mean {near[0]}?" if near else "") + f" ({', '.join(known)})")
        if isinstance(weight, str) and _is_number(weight):  # YAML 1.1 reads 3e-4 as text
            weight = float(weight)
        if isinstance(weight, bool) or not isinstance(weight, int | float) or not math.isfinite(weight) or weight < 0:
            raise ValueError(f"the weight of {name} is {weight!r}; a number of 0 or more is needed")
        read[name] = float(weight)
    if not any(read.values()):
        raise ValueError("no weight is above 0, so nothing would be learnt; give at least one, as in {kl: 1.0}")
    return read


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return text.lower().lstrip("+-") not in ("nan", "inf", "infinity")
