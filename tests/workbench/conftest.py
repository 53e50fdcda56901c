"""Views without a page: no comm is open, so a test stands in for one."""

import time

import pytest

from tests.workbench.simulated_run import launch_paced, simulate_run


def eventually(condition, seconds=20.0):
    """Wait until the condition holds; its last value."""
    deadline = time.monotonic() + seconds
    while not (found := condition()) and time.monotonic() < deadline:
        time.sleep(0.05)
    return found


@pytest.fixture(scope="session")
def finished_run(tmp_path_factory):
    """The folder of a simulated run that is over."""
    return simulate_run(tmp_path_factory.mktemp("runs") / "done", "telemetry.sample_every=20")


@pytest.fixture
def paced_run(tmp_path):
    """The folder of a run that goes on in a process of its own, with its process."""
    folder = tmp_path / "runs" / "live"
    process = launch_paced(folder, "telemetry.sample_every=20", "telemetry.log_every=60", samples=8_000, pace=0.01)
    yield folder, process
    process.kill()
    process.wait()


@pytest.fixture
def closing():
    """Views handed to it are closed at the end."""
    views = []

    def keep(view):
        views.append(view)
        return view

    yield keep
    for view in views:
        view.close()
