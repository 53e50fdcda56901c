"""The console line: printed while a run goes on, and parsed again from logs.

    [2m] step=1 loss=--- acc=--- streak=--- lr=--- noise=0.0000 | tgt=0.31b/s dft=0.13b/s (5.4Ktok/s) | q_pre=[178] q_hs=[13]
    q_hsb=[0, 0, 0, 1, 1, 11] | epoch~0.00 ETA=13.5d

(one line). `[2m]` is the time since the run's session began; `tgt` and `dft` are batches per second of all targets and all drafters
and the bracket is the drafters' real tokens per second, all three over the last minute at most; `q_pre` batches wait for the targets,
`q_hs` items are in the pool, `q_hsb` counts them by length bucket. `---` means not sampled yet. A line may be cut off at its end.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

_ANSI = re.compile(r"\x1b\[[0-9;?]*[ -/]*[@-~]")
_START = re.compile(r"\[(?P<elapsed>(?:\d+d)?(?:\d+h)?(?:\d+m)?(?:\d+s)?)\] step=(?P<step>\d+)\b")
_FIELDS = re.compile(r"(\w+)[=~](\[[^\]]*\]|[^\s|]+)")
_KTOK = re.compile(r"\(([\d.]+)Ktok/s\)")
_UNITS = {"d": 86_400.0, "h": 3_600.0, "m": 60.0, "s": 1.0}


@dataclass(frozen=True)
class ConsoleLine:
    """One progress line; None where the line says `---` or was cut off before."""

    elapsed_seconds: float
    step: int
    loss: float | None = None
    accuracy: float | None = None
    streak: float | None = None
    lr: float | None = None
    noise: float | None = None
    target_batches_per_second: float | None = None
    drafter_batches_per_second: float | None = None
    ktok_per_second: float | None = None
    prefetched: int | None = None
    pooled: int | None = None
    pool_histogram: tuple[int, ...] | None = None
    epoch: float | None = None
    eta_seconds: float | None = None


def format_line(line: ConsoleLine) -> str:
    """The line as it is printed."""
    histogram = "---" if line.pool_histogram is None else str(list(line.pool_histogram))
    return (
        f"[{format_duration(line.elapsed_seconds)}] step={line.step} loss={_number(line.loss, '.4f')} "
        f"acc={_number(line.accuracy, '.4f')} streak={_number(line.streak, '.3f')} lr={_number(line.lr, '.2e')} "
        f"noise={_number(line.noise, '.4f')} | tgt={_number(line.target_batches_per_second, '.2f')}b/s "
        f"dft={_number(line.drafter_batches_per_second, '.2f')}b/s ({_number(line.ktok_per_second, '.1f')}Ktok/s) | "
        f"q_pre=[{_number(line.prefetched, 'd')}] q_hs=[{_number(line.pooled, 'd')}] q_hsb={histogram} | "
        f"epoch~{_number(line.epoch, '.2f')} ETA={'---' if line.eta_seconds is None else format_eta(line.eta_seconds)}"
    )


def parse_line(text: str) -> ConsoleLine | None:
    """Read a line back, colours and other output before it ignored; None if it is no progress line."""
    plain = _ANSI.sub("", text).rstrip("\r\n")
    start = _START.search(plain)
    if start is None or not start["elapsed"]:
        return None
    rest = plain[start.end() :]
    fields = dict(_FIELDS.findall(rest))
    ktok = _KTOK.search(rest)
    histogram = _integers(fields.get("q_hsb"))
    return ConsoleLine(
        elapsed_seconds=parse_duration(start["elapsed"]),
        step=int(start["step"]),
        loss=_float(fields.get("loss")),
        accuracy=_float(fields.get("acc")),
        streak=_float(fields.get("streak")),
        lr=_float(fields.get("lr")),
        noise=_float(fields.get("noise")),
        target_batches_per_second=_rate(fields.get("tgt")),
        drafter_batches_per_second=_rate(fields.get("dft")),
        ktok_per_second=_float(ktok[1]) if ktok else None,
        prefetched=_single(fields.get("q_pre")),
        pooled=_single(fields.get("q_hs")),
        pool_histogram=tuple(histogram) if histogram is not None else None,
        epoch=_float(fields.get("epoch")),
        eta_seconds=_eta(fields.get("ETA")),
    )


def format_duration(seconds: float) -> str:
    """Whole minutes as the record prints them: 45s, 2m, 3h05m, 1d02h."""
    whole = int(seconds)
    if whole < 60:
        return f"{whole}s"
    if whole < 3_600:
        return f"{whole // 60}m"
    if whole < 86_400:
        return f"{whole // 3_600}h{whole % 3_600 // 60:02d}m"
    return f"{whole // 86_400}d{whole % 86_400 // 3_600:02d}h"


def parse_duration(text: str) -> float:
    """Seconds of `format_duration`'s text."""
    return sum(float(number) * _UNITS[unit] for number, unit in re.findall(r"(\d+)([dhms])", text))


def format_eta(seconds: float) -> str:
    """Time left in its largest unit, one decimal: 13.5d, 2.1h, 4.0m, 30.0s."""
    unit = next((unit for unit in "dhm" if seconds >= _UNITS[unit]), "s")
    return f"{seconds / _UNITS[unit]:.1f}{unit}"


def _number(value: float | None, form: str) -> str:
    return "---" if value is None else format(value, form)


def _float(text: str | None) -> float | None:
    try:
        return None if text is None else float(text)
    except ValueError:
        return None


def _rate(text: str | None) -> float | None:
    return _float(text.removesuffix("b/s")) if text is not None and text.endswith("b/s") else None


def _integers(text: str | None) -> list[int] | None:
    if text is None or not re.fullmatch(r"\[\s*\d+(\s*,\s*\d+)*\s*\]", text):
        return None
    return [int(number) for number in re.findall(r"\d+", text)]


def _single(text: str | None) -> int | None:
    numbers = _integers(text)
    return numbers[0] if numbers else None


def _eta(text: str | None) -> float | None:
    match = re.fullmatch(r"([\d.]+)([dhms])", text or "")
    return float(match[1]) * _UNITS[match[2]] if match else None
