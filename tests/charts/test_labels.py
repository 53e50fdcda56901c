"""Names beside points: readable where there is room, none lost where there is not."""

from hypothesis import given
from hypothesis import strategies as st

from dflash.charts.labels import PLACES, _box, _covered, label_places


def test_a_lone_point_has_its_name_above_it():
    assert label_places([(100, 100)], ["sorted"]) == ["top center"]


def test_names_of_points_close_together_hardly_cover_each_other():
    points, names = [(300.0, 200.0), (305.0, 201.0), (310.0, 199.0), (302.0, 204.0)], ["shuffled", "bucketed", "jittered", "sorted"]
    boxes = [
        _box(point, 6.5 * len(name), place) for point, name, place in zip(points, names, label_places(points, names), strict=True)
    ]
    assert sum(_covered(one, other) for at, one in enumerate(boxes) for other in boxes[:at]) < 0.05 * 4 * 52 * 15


@given(st.lists(st.tuples(st.floats(0, 640), st.floats(0, 290)), max_size=12))
def test_every_point_has_a_place(points):
    places = label_places(points, ["a plan, stratified"] * len(points))
    assert len(places) == len(points)
    assert set(places) <= set(PLACES)
