from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from transformers.utils import logging as hf_logging

from tests.model.tiny import save_target

torch.set_num_threads(1)
hf_logging.disable_progress_bar()


@pytest.fixture(scope="session")
def target_folder(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """The folder of a tiny random target of a family, made once a session."""
    made: dict[str, Path] = {}

    def folder(family: str) -> Path:
        if family not in made:
            made[family] = save_target(tmp_path_factory.mktemp(family), family)
        return made[family]

    return folder
