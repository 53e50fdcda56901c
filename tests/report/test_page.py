import base64
import hashlib
import json
import re
import shutil

import plotly.graph_objects as go
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dflash.charts.style import Axis, empty_figure, new_figure
from dflash.errors import RefusedInput
from dflash.report import page as page_module
from dflash.report.page import Callout, Chart, Code, Fact, Facts, Items, Page, Section, Table, Text, render_page, shown, write_page


def line(name="a"):
    figure = new_figure(Axis("time", "h"), Axis("rate", "Ktok/s"))
    return figure.add_scatter(x=[1, 2, 3], y=[3.0, 1.0, 2.0], name=name)


def scripts(html, kind=None):
    pattern = r"<script>(.*?)</script>" if kind is None else rf'<script type="{kind}"[^>]*>(.*?)</script>'
    return re.findall(pattern, html, re.DOTALL)


def test_the_bundle_is_on_the_page_once_however_many_charts_there_are():
    html = render_page(
        Page("t", [Section("s", [Chart(line(), "one"), Chart(line(), "two"), Chart(empty_figure("none"), "three")])])
    )
    assert html.count("plotly.js (cartesian - minified)") == 1
    assert html.count('class="chart"') == 3
    assert len(html) < 1_700_000


def test_a_page_without_charts_carries_no_script():
    html = render_page(Page("t", [Section("s", [Text("hello")])]))
    assert "<script" not in html
    assert len(html) < 10_000


def test_charts_come_without_their_template_since_the_page_has_both():
    html = render_page(Page("t", lead=[Chart(line(), "one")]))
    chart, themes = (json.loads(text) for text in scripts(html, "application/json"))
    assert "template" not in chart["layout"]
    assert chart["layout"]["yaxis"]["title"]["text"] == "rate (Ktok/s)"
    assert set(themes) == {"light", "dark"}


def test_the_policy_allows_the_scripts_on_the_page_and_no_other():
    html = render_page(Page("t", lead=[Chart(line(), "one")]))
    allowed = set(re.findall(r"'sha256-([^']+)'", html))
    assert {base64.b64encode(hashlib.sha256(text.encode()).digest()).decode() for text in scripts(html)} == allowed
    assert "default-src 'none'" in html


ATTACK = "<script>alert(1)</script><img src=x onerror=alert(1)>\"'</pre></td></style>"


def everything_made_of(text):
    blocks = [
        Text(text), Callout(text, [text], "bad"), Facts([Fact(text, text, text)]), Items([text]), Code(text, text),
        Code(text, text, folded=True), Table([text], [[text]], text), Table([text], [[text]], text, folded=True), Chart(line(text), text),
    ]  # fmt: skip
    return Page(text, [Section(text, blocks)] * 3, blocks, text, text, text)


def test_markup_in_any_text_is_shown_and_not_obeyed():
    html = render_page(everything_made_of(ATTACK))
    plain = render_page(everything_made_of("x"))
    for tag in ("<script", "</script", "<img", "</pre", "</td", "</style"):
        assert html.count(tag) == plain.count(tag), tag


@settings(max_examples=30, deadline=None)
@given(st.text(st.sampled_from("<>/&\"'{}% scriptSTYLE!-\u2028"), min_size=1, max_size=30).map(lambda text: f"x{text}x"))
def test_no_text_changes_the_elements_of_the_page(text):
    def tags(html):
        return re.findall(r"</?[a-zA-Z]+", html)

    html = render_page(everything_made_of(text))
    assert tags(html) == tags(render_page(everything_made_of("x")))
    for body in scripts(html, "application/json"):
        json.loads(body)


def test_a_kind_of_trace_the_bundle_cannot_draw_is_refused_rather_than_drawn_wrong():
    with pytest.raises(ValueError, match="draws no pie"):
        render_page(Page("t", lead=[Chart(go.Figure(go.Pie(values=[1, 2])), "no")]))


def test_numbers_are_aligned_and_nothing_shows_as_a_dash():
    table = Table(["name", "value"], [["a", 1234567], ["b", None], ["c", 0.123456]])
    assert table.numeric == {1}
    assert table.cells == [["a", "1,234,567"], ["b", "–"], ["c", "0.1235"]]
    assert [shown(value) for value in (float("nan"), 12_345.6, True)] == ["–", "12,346", "yes"]


def test_a_folder_is_refused_as_the_file_to_write(tmp_path):
    with pytest.raises(RefusedInput, match="is a folder"):
        write_page(tmp_path, Page("t"))


@pytest.mark.browser
def test_a_real_browser_draws_every_chart_offline_and_reports_no_error(tmp_path):
    chromium = shutil.which("chromium")
    if chromium is None:
        pytest.skip("no chromium here")
    from playwright.sync_api import sync_playwright

    heat = new_figure(Axis("time", "h"), Axis("bucket"))
    heat.add_heatmap(z=[[1, 2], [3, 4]])
    path = tmp_path / "page.html"
    write_page(path, Page(ATTACK, lead=[Chart(line(ATTACK), ATTACK), Chart(heat, "heat"), Text(ATTACK)]))
    said, asked = [], []
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox", "--disable-gpu"])
        for scheme, background in (("light", "#ffffff"), ("dark", "#16181c")):
            view = browser.new_page(color_scheme=scheme, viewport={"width": 400, "height": 800})
            view.on("console", lambda message: said.append(message.text))
            view.on("pageerror", lambda error: said.append(str(error)))
            view.on("dialog", lambda dialog: said.append("a script ran"))
            view.on("request", lambda request: asked.append(request.url))
            view.goto(path.as_uri())
            drawn = view.evaluate(
                "[...document.querySelectorAll('.chart')].map(c => [c.data[0].type, c._fullLayout.paper_bgcolor])"
            )
            assert drawn == [["scatter", background], ["heatmap", background]]
            assert view.evaluate("document.documentElement.scrollWidth") <= 400
        browser.close()
    assert said == []
    assert {url for url in asked if not url.startswith(("data:", "blob:"))} == {path.as_uri()}


def test_every_asset_is_in_the_package():
    assert {"page.css", "page.js", "plotly-cartesian.min.js", "plotly-LICENSE"} <= {
        path.name for path in (page_module._HERE / "assets").iterdir()
    }
