"""The post-mortem view: what it finds is what `dflash report` finds, notes are kept with the run, errors are shown in it."""

import shlex
import shutil

import pytest

from benchmarks.injected_faults import FAULTS, Machine, simulate_run
from dflash.report.headline import headline
from dflash.report.postmortem import NOTES_FILE, investigate, write_notes
from dflash.runs.folder import RunFolder
from tests.workbench.conftest import eventually
from workbench import PostMortem, app
from workbench.chart import Chart
from workbench.page_blocks import block_html, page_widgets
from workbench.post_mortem import LARGEST_DROP

ATTACK = "<script>alert(1)</script>"


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """The folder of a healthy run and of one whose drafters slowed down at step 20."""
    folder = tmp_path_factory.mktemp("runs")
    simulate_run(folder, "healthy", Machine(), seed=1)
    simulate_run(folder, "slowed", Machine(), seed=3, batches=1_280, live={20: FAULTS["drafter speed"](Machine())})
    return folder


def shown(view):
    """All text of the findings."""
    return "".join(getattr(widget, "value", "") for widget in view.findings.children)


def test_the_view_says_what_the_report_says(runs, closing):
    view = closing(PostMortem(runs / "slowed", runs=runs, baseline=runs / "healthy"))
    assert view.against.value == RunFolder(runs / "healthy")
    assert view.worker.wait(120)
    post = investigate(RunFolder(runs / "slowed"), baseline=RunFolder(runs / "healthy"))
    assert headline(post)[1].removesuffix(".") in shown(view)
    charts = [widget for widget in view.findings.children if isinstance(widget, Chart)]
    assert len(charts) >= 4
    assert charts[0].figure["data"][0]["name"] == "before"
    assert not view.go.disabled


def test_a_run_is_held_against_its_largest_drop_a_step_or_another_run(runs, closing):
    view = closing(PostMortem(runs=runs))
    assert {name for name, _ in view.against.options} >= {LARGEST_DROP}
    view.pick.value = "slowed"
    assert ("run healthy", RunFolder(runs / "healthy")) in view.against.options
    view.go.click()
    assert view.worker.wait(120)
    assert "Throughput fell" in shown(view)
    stepped = closing(PostMortem(runs / "slowed", runs=runs, at_step=20))
    assert stepped.against.value == 20
    assert shlex.split(stepped.command_line("r.html")) == [
        "dflash", "report", str(runs / "slowed"), "--at", "20", "--out", "r.html",
    ]  # fmt: skip


def test_notes_are_kept_with_the_run_and_stand_in_the_report(runs, closing, tmp_path):
    shutil.copytree(runs, tmp_path / "runs")
    view = closing(PostMortem(runs=tmp_path / "runs"))
    view.pick.value = "slowed"
    view.notes.value = f"seen by hand\n\n{ATTACK}"
    assert (tmp_path / "runs" / "slowed" / NOTES_FILE).read_text() == f"seen by hand\n\n{ATTACK}\n"
    view.pick.value = "healthy"
    assert view.notes.value == ""
    view.pick.value = "slowed"
    assert "seen by hand" in view.notes.value
    for name in ("report.html", "report.md"):
        view.out.value = str(tmp_path / name)
        view.write.click()
        assert view.worker.wait(120)
        text = (tmp_path / name).read_text()
        assert "seen by hand" in text
        assert ATTACK not in text
    view.go.click()
    assert view.worker.wait(120)
    assert ATTACK not in shown(view)


def test_a_new_run_appears_when_looked_for_and_the_choice_stays(runs, closing, tmp_path):
    shutil.copytree(runs, tmp_path / "runs")
    view = closing(PostMortem(tmp_path / "runs" / "slowed", runs=tmp_path / "runs", at_step=20))
    shutil.copytree(runs / "healthy", tmp_path / "runs" / "later")
    view.refresh.click()
    assert "later" in view.pick.options
    assert (view.pick.value, view.against.value) == ("slowed", 20)


def test_what_goes_wrong_is_shown_in_the_view(runs, closing, tmp_path):
    empty = closing(PostMortem(runs=tmp_path / "nothing"))
    assert "no runs in" in shown(empty)
    empty.go.click()
    assert "no runs in" in empty.message.value
    view = closing(PostMortem(runs / "slowed", runs=runs, at_step=10**6))
    assert view.worker.wait(120)
    assert "choose one with steps on both sides" in view.message.value
    assert not view.go.disabled
    view.out.value = str(tmp_path / "report.pdf")
    view.write.click()
    assert "a report is an .html or an .md file" in view.message.value


def test_live_changes_are_offered_as_steps(paced_run, closing):
    from dflash.runs.control import await_answer, send_command

    folder, _ = paced_run
    run = RunFolder(folder)
    eventually(lambda: list(run.events.glob("*.jsonl")), 30)
    answer = await_answer(run, send_command(run, "set", key="pool.policy", value="random"), seconds=60)
    view = closing(PostMortem(runs=folder.parent))
    view.worker.wait(30)
    expected = f"step {answer['step']}: pool.policy oldest → random"
    assert [name for name, _ in view.against.options if name == expected] == ([expected] if answer["step"] else [])


def test_blocks_are_escaped(runs):
    from dflash.report.page import Callout, Code, Fact, Facts, Items, Page, Section, Table, Text

    blocks = [
        Text(ATTACK), Callout(ATTACK, [ATTACK]), Facts([Fact(ATTACK, ATTACK, ATTACK)]), Items([ATTACK]), Code(ATTACK, ATTACK, folded=True),
        Code(ATTACK, ATTACK), Table([ATTACK], [[ATTACK]], ATTACK, folded=True),
    ]  # fmt: skip
    assert not [block for block in blocks if ATTACK in block_html(block)]
    [text] = page_widgets(Page(ATTACK, [Section(ATTACK, blocks)], kicker=ATTACK))
    assert ATTACK not in text.value


def test_the_app_has_a_tab_for_it(runs, closing):
    bench = closing(app(runs=runs))
    bench.tabs.selected_index = bench.tabs.titles.index("post-mortem")
    assert set(bench.post_mortem.pick.options) == {"healthy", "slowed"}


def test_empty_notes_take_the_file_away_or_leave_none(tmp_path):
    run = RunFolder(tmp_path)
    write_notes(run, "  ")
    assert not (tmp_path / NOTES_FILE).exists()
