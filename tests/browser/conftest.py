"""Browser tests need Chromium; where it is missing they are skipped loudly, and fail when CI=true."""

import os

import pytest

from tests.browser.lab import CHROMIUM, chromium, jupyter_lab


@pytest.fixture
def lab(tmp_path):
    """`lab(width=, dark=)` is a context of (page, address, root folder) of a JupyterLab on a folder of its own."""
    if CHROMIUM is None:
        if os.environ.get("CI") == "true":
            pytest.fail("no chromium here, and CI=true: browser tests must run")
        pytest.skip("NO CHROMIUM: browser tests did not run; `apt-get install chromium` brings it")
    root, work = tmp_path / "root", tmp_path / "work"
    root.mkdir()
    work.mkdir()
    with jupyter_lab(root, work) as address, chromium() as page:
        yield page, address, root
