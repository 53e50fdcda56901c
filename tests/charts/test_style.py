import itertools

import pytest

from dflash.charts import style


def luminance(colour: str) -> float:
    """WCAG 2 relative luminance."""
    if colour.startswith("rgb"):
        parts = [float(part) / 255 for part in colour.strip("rgb()").split(",")]
    else:
        parts = [int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5)]
    linear = [part / 12.92 if part <= 0.03928 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def contrast(one: str, other: str) -> float:
    low, high = sorted((luminance(one), luminance(other)))
    return (high + 0.05) / (low + 0.05)


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_series_stand_out_from_both_backgrounds_and_text_is_easy_to_read(theme):
    for colour in style.SERIES:
        assert contrast(colour, style.BACKGROUND[theme]) >= 3, colour
    assert contrast(style.INK[theme], style.BACKGROUND[theme]) >= 7


def test_no_two_series_share_a_colour_and_states_have_each_their_own():
    assert len(set(style.SERIES)) == len(style.SERIES)
    assert len(set(style.STATE_COLOURS.values())) == len(style.STATE_COLOURS)


@pytest.mark.parametrize("theme", ["light", "dark"])
@pytest.mark.parametrize("steps", [1, 2, 6, 16])
def test_a_ramp_gets_lighter_step_by_step_so_that_it_reads_in_grey_too(theme, steps):
    shades = [luminance(colour) for colour in style.ramp(steps, theme)]
    assert len(shades) == steps
    assert all(left < right for left, right in itertools.pairwise(shades))


def test_an_axis_says_its_unit():
    figure = style.new_figure(style.Axis("time", "h"), style.Axis("throughput", "Ktok/s", log=True), title="t")
    assert figure.layout.xaxis.title.text == "time (h)"
    assert figure.layout.yaxis.title.text == "throughput (Ktok/s)"
    assert figure.layout.yaxis.type == "log"


def test_the_empty_state_says_why_and_shows_markup_as_text():
    figure = style.empty_figure("no <b>steps</b> yet")
    assert figure.layout.annotations[0].text == "no &lt;b&gt;steps&lt;/b&gt; yet"


def test_themes_differ_in_nothing_but_the_template():
    figure = style.new_figure(style.Axis("a"), style.Axis("b"))
    light = figure.to_dict()
    dark = style.themed(figure, "dark").to_dict()
    assert dark["layout"].pop("template") != light["layout"].pop("template")
    assert dark == light


def test_bucket_labels_say_that_a_boundary_belongs_below():
    assert style.bucket_labels([0, 770, 1216]) == ["1-770", "771-1216"]


@pytest.mark.parametrize("theme", ["light", "dark"])
@pytest.mark.parametrize("steps", range(1, 40))
def test_a_ramp_has_a_colour_of_its_own_for_each_of_any_number(steps, theme):
    assert len(set(style.ramp(steps, theme))) == steps
