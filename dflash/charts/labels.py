"""Where the names of points go, so that they can be read when points lie close together."""

from __future__ import annotations

from collections.abc import Sequence

PLACES = ("top center", "bottom center", "middle right", "middle left", "top right", "bottom right", "top left", "bottom left")
_CHARACTER_WIDTH, _LINE_HEIGHT, _GAP = 6.5, 15.0, 8.0

Box = tuple[float, float, float, float]
"""Left, bottom, right, top, in pixels."""


def label_places(points: Sequence[tuple[float, float]], names: Sequence[str]) -> list[str]:
    """A plotly `textposition` for each name, chosen one after the other to cover the names and markers around it least.

    Args:
        points: (x, y) in pixels, y upwards.
        names: what is written beside them.
    """
    taken: list[Box] = [(x - _GAP / 2, y - _GAP / 2, x + _GAP / 2, y + _GAP / 2) for x, y in points]
    chosen = []
    for point, name in zip(points, names, strict=True):
        boxes = {place: _box(point, len(name) * _CHARACTER_WIDTH, place) for place in PLACES}
        best = min(PLACES, key=lambda place: sum(_covered(boxes[place], other) for other in taken))
        taken.append(boxes[best])
        chosen.append(best)
    return chosen


def _box(point: tuple[float, float], width: float, place: str) -> Box:
    vertical, horizontal = place.split()
    x, y = point
    left = {"center": x - width / 2, "right": x + _GAP, "left": x - _GAP - width}[horizontal]
    bottom = {"top": y + _GAP, "middle": y - _LINE_HEIGHT / 2, "bottom": y - _GAP - _LINE_HEIGHT}[vertical]
    return left, bottom, left + width, bottom + _LINE_HEIGHT


def _covered(one: Box, other: Box) -> float:
    """Area both cover."""
    width = min(one[2], other[2]) - max(one[0], other[0])
    height = min(one[3], other[3]) - max(one[1], other[1])
    return max(width, 0.0) * max(height, 0.0)
