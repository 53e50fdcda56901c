"""The offline page of a run."""

import json

from typer.testing import CliRunner

import dflash.cli.workbench
from dflash.charts.run import CHARTS
from dflash.report.dashboard import write_dashboard
from dflash.runs.folder import RunFolder
from tests.workbench.simulated_run import simulate_run


def test_every_chart_is_on_the_page_and_nothing_is_loaded_from_elsewhere(tmp_path):
    run = RunFolder(simulate_run(tmp_path / "a", samples=2_000))
    wrote = write_dashboard([run], tmp_path / "page.html")
    text = (tmp_path / "page.html").read_text()
    assert wrote["steps"] > 0
    assert text.count('class="chart"') == len(CHARTS)
    assert 'src="http' not in text
    assert "accumulate: 16" in text


def test_the_command_writes_the_page_and_says_so_as_json(tmp_path):
    import typer

    simulate_run(tmp_path / "runs" / "a", samples=1_000)
    app = typer.Typer()
    app.callback()(lambda: None)
    dflash.cli.workbench.register(app)
    done = CliRunner().invoke(
        app, ["dashboard", "a", "--runs", str(tmp_path / "runs"), "--out", str(tmp_path / "p.html"), "--axis", "step", "--json"]
    )
    assert done.exit_code == 0, done.output
    assert json.loads(done.stdout.splitlines()[-1])["runs"] == 1
