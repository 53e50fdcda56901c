import subprocess
import sys


def test_logs_are_read_explained_and_reported_without_torch():
    modules = (
        "dflash.analysis.attribution, dflash.importing.command, dflash.report.sections, dflash.charts.regression, dflash.cli.report"
    )
    code = f"import sys, {modules}; sys.exit('torch' in sys.modules or 'ray' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
