"""Every bad input of the corpus is accepted rightly or refused with its place: no traceback, no hang."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.corpus.campaign import DOORS, make_sound, results


@pytest.fixture(scope="module")
def sound(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_sound(tmp_path_factory.mktemp("sound"))


@pytest.mark.parametrize("door", DOORS)
def test_bad_input_is_accepted_rightly_or_refused_with_its_place(door: str, sound: Path, tmp_path: Path) -> None:
    found = list(results(door, tmp_path / door, sound))
    assert [f"{result.case.name}: {result.wrong[:300]}" for result in found if result.wrong] == []
    assert {result.case.name for result in found}
