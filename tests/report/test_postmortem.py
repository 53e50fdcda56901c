import json
import re
import shutil
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner

from benchmarks.injected_faults import FAULTS, Machine, simulate_run
from benchmarks.worked_examples import RECORD_LINES
from dflash.cli.report import register
from dflash.errors import RefusedInput
from dflash.importing.command import import_logs
from dflash.report.counterfactual import simulate_without
from dflash.report.headline import _interval, headline
from dflash.report.markdown import escape_markdown, render_markdown
from dflash.report.page import render_page
from dflash.report.postmortem import NOTES_FILE, investigate
from dflash.report.sections import postmortem_page
from dflash.runs.folder import RunFolder

EXAMPLES = Path(__file__).parents[2] / "docs" / "examples"
ATTACK = "<script>alert(1)</script>"


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """A healthy run, one that pads, and one that slows down on the way."""
    folder = tmp_path_factory.mktemp("runs")
    return {
        "healthy": simulate_run(folder, "healthy", Machine(), seed=1),
        "padded": simulate_run(folder, "padded", FAULTS["padding"](Machine()), seed=2),
        "slowed": simulate_run(folder, "slowed", Machine(), seed=3, batches=1_280, live={20: FAULTS["drafter speed"](Machine())}),
    }


def invoke(*arguments):
    app = typer.Typer()
    register(app)
    return CliRunner().invoke(app, [str(each) for each in arguments])


def test_two_runs_give_a_confirmed_cause_with_its_trigger(runs):
    post = investigate(runs["padded"], baseline=runs["healthy"])
    verdict, sentence = headline(post)
    assert verdict == "regression"
    assert "because of padding" in sentence
    assert post.suspects[0].key == "batching.strategy"
    html = render_page(postmortem_page(post))
    for words in ("Padding closure", "batching.strategy=jittered", "What was changed", "Ruled out", "Reproduce"):
        assert words in html


def test_the_simulator_says_what_the_rate_would_be_without_the_change(runs):
    post = investigate(runs["padded"], baseline=runs["healthy"])
    found = simulate_without(post)
    assert found.undone == ["batching.strategy=jittered"]
    assert found.with_change == pytest.approx(post.attribution.after.ktok_s, rel=0.1)
    assert found.without_change == pytest.approx(post.attribution.before.ktok_s, rel=0.1)


def test_a_slower_device_is_nothing_that_a_setting_could_undo(runs):
    assert simulate_without(investigate(runs["slowed"])) is None


def test_a_change_inside_a_run_is_found_and_explained_without_being_told_where(runs):
    post = investigate(runs["slowed"])
    assert headline(post)[0] == "regression"
    assert [cause.factor for cause in post.attribution.causes] == ["drafter speed"]
    told = investigate(runs["slowed"], at_step=21)
    assert abs(told.at_seconds - post.at_seconds) < 300


def test_a_healthy_run_is_reported_as_steady(runs):
    post = investigate(runs["healthy"])
    assert headline(post)[0] == "steady"
    render_page(postmortem_page(post))


def test_the_record_lines_give_a_suspicion_and_never_a_proof(tmp_path):
    (tmp_path / "after.log").write_text(RECORD_LINES)
    import_logs([EXAMPLES / "round-robin-before.log"], tmp_path / "before")
    import_logs([tmp_path / "after.log"], tmp_path / "after")
    post = investigate(RunFolder(tmp_path / "after"), baseline=RunFolder(tmp_path / "before"))
    verdict, sentence = headline(post)
    assert verdict == "suspected regression"
    assert "consistent with a pull policy" in sentence
    text = render_markdown(postmortem_page(post))
    assert "provisional" in text
    assert "after.log:2:" in text
    assert "[0, 0, 0, 1, 1, 11]" in text


@pytest.mark.parametrize("name", ["shuffle", "round-robin"])
def test_the_worked_examples_are_what_the_command_writes_today(tmp_path, name):
    for side in ("before", "after"):
        shutil.copy(EXAMPLES / f"{name}-{side}.log", tmp_path)
        import_logs([tmp_path / f"{name}-{side}.log"], tmp_path / f"{name}-{side}")
    post = investigate(RunFolder(tmp_path / f"{name}-after"), baseline=RunFolder(tmp_path / f"{name}-before"))
    written = (
        render_markdown(postmortem_page(post)).replace(str(tmp_path).replace("_", "\\_"), "runs").replace(str(tmp_path), "runs")
    )
    kept = (EXAMPLES / f"{name}.md").read_text()
    assert kept[: len(written)].splitlines() == written.splitlines()


@pytest.mark.parametrize("form", ["html", "md"])
def test_markup_in_notes_names_and_logs_does_nothing(tmp_path, runs, form):
    folder = tmp_path / f"x{ATTACK.replace('/', '')}"
    shutil.copytree(runs["padded"].path, folder)
    (folder / NOTES_FILE).write_text(f"{ATTACK}\n\n[click](javascript:alert(1)) @everyone")
    page = postmortem_page(investigate(RunFolder(folder), baseline=runs["healthy"]))
    if form == "html":
        html = render_page(page)
        clean = render_page(postmortem_page(investigate(runs["padded"], baseline=runs["healthy"])))
        assert html.count("<script") == clean.count("<script")
    else:
        text = re.sub(r"(`{3,}).*?\1", "", render_markdown(page), flags=re.DOTALL)
        assert ATTACK not in text
        assert "\\[click\\](javascript" in text
        assert "@everyone" not in text


def test_markdown_escapes_what_would_be_markup():
    assert escape_markdown("a|b *c* `d`\n# e") == "a\\|b \\*c\\* \\`d\\` \\# e"


def test_wrong_questions_are_refused(runs, tmp_path):
    with pytest.raises(RefusedInput, match="not both"):
        investigate(runs["padded"], baseline=runs["healthy"], at_step=3)
    with pytest.raises(RefusedInput, match="steps on both sides"):
        investigate(runs["padded"], at_step=10_000)
    (tmp_path / "empty" / "events").mkdir(parents=True)
    with pytest.raises(RefusedInput, match="no throughput"):
        investigate(RunFolder(tmp_path / "empty"))


def test_the_commands_end_with_one_json_object(runs, tmp_path):
    padded, healthy = runs["padded"].path, runs["healthy"].path
    calls = {
        ("changes", padded): {"verdict", "changes", "stalls", "detectable_percent"},
        ("explain", padded, "--baseline", healthy): {"verdict", "causes", "ruled_out", "suspects"},
        ("jumpiness", padded): {"verdict", "j2", "explained", "spikes"},
        ("diff", healthy, padded, "--ignore", "batching.seed"): {"config", "code", "environment", "data", "results"},
        ("report", padded, "--baseline", healthy, "--out", tmp_path / "r.html"): {"report", "verdict", "sentence"},
        ("report", padded, "--baseline", healthy, "--out", tmp_path / "r.md"): {"report", "verdict", "sentence"},
        ("import", EXAMPLES / "shuffle-after.log", "--out", tmp_path / "imported"): {"lines_read", "lines_understood", "runs"},
        ("export-events", padded, "--to", "csv", "--out", tmp_path / "csv"): {"events", "files"},
    }
    for arguments, keys in calls.items():
        done = invoke(*arguments, "--json")
        assert done.exit_code == 0, (arguments, done.output, done.exception)
        assert keys <= set(json.loads(done.stdout.strip().splitlines()[-1]))
    assert (tmp_path / "r.html").stat().st_size < 2_500_000


def test_the_commands_also_speak_in_sentences(runs):
    done = invoke("explain", runs["padded"].path, "--baseline", runs["healthy"].path)
    assert "because of padding" in done.stdout
    assert "not a slower target" in done.stdout
    assert invoke("report", runs["padded"].path, "--out", "x.pdf").exit_code != 0


@pytest.mark.browser
def test_a_report_opens_in_a_real_browser_and_prints(runs, tmp_path):
    chromium = shutil.which("chromium")
    if chromium is None:
        pytest.skip("no chromium here")
    from playwright.sync_api import sync_playwright

    path = tmp_path / "report.html"
    path.write_text(render_page(postmortem_page(investigate(runs["padded"], baseline=runs["healthy"]))))
    said = []
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox", "--disable-gpu"])
        view = browser.new_page(viewport={"width": 400, "height": 800})
        view.on("console", lambda message: said.append(message.text))
        view.on("pageerror", lambda error: said.append(str(error)))
        view.goto(path.as_uri())
        kinds = view.evaluate("[...document.querySelectorAll('.chart')].map(c => c._fullData.length)")
        assert len(kinds) >= 6
        assert all(kinds)
        assert view.evaluate("document.documentElement.scrollWidth") <= 400
        assert len(view.pdf(format="A4")) > 50_000
        browser.close()
    assert said == []


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ((-0.35, -0.49, -0.17), "17% to 49% less"),
        ((0.2, 0.1, 0.3), "10% to 30% more"),
        ((-0.5, -0.87, 0.95), "-87% to +95%"),
        ((0.5, -0.2, 40.0), "-20% to over +1,000%"),
    ],
)
def test_an_interval_says_its_direction_or_that_it_has_none(change, words):
    assert _interval(*change) == words


def test_the_command_of_a_report_asks_for_the_same_step(runs):
    post = investigate(runs["slowed"], at_step=20)
    assert f"dflash report {runs['slowed'].path} --at 20 --out" in render_markdown(postmortem_page(post)).replace("\\", "")
