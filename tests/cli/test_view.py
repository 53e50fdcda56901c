import io

from dflash.cli.view import run_view, summary
from dflash.telemetry.console import ConsoleLine, format_line

LINE = ConsoleLine(90.0, 7, loss=3.2, streak=1.1, ktok_per_second=5.4, eta_seconds=120.0)


class Terminal(io.StringIO):
    def isatty(self):
        return True


def test_a_pipe_gets_the_bare_lines():
    stream = io.StringIO()
    with run_view(stream, lambda: 10) as show:
        show("warning: [not markup]")
    assert stream.getvalue() == "warning: [not markup]\n"


def test_a_terminal_gets_a_bar_under_the_lines():
    stream = Terminal()
    with run_view(stream, lambda: 20) as show:
        show(format_line(LINE))
        show("warning: [not markup]")
    text = stream.getvalue()
    assert "step=7 loss=3.2000" in text
    assert "warning: [not markup]" in text
    assert "7/20" in text
    assert "5.4 Ktok/s" in text


def test_the_summary_leaves_out_what_is_not_known():
    assert summary(LINE) == "5.4 Ktok/s  loss 3.200  acceptance 2.10  2.0m left"
    assert summary(ConsoleLine(1.0, 0)) == ""
