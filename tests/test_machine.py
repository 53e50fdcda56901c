from __future__ import annotations

import psutil

from dflash.machine import Gpu, memory_limit_bytes, parse_gpus


def test_gpus_are_read_from_nvidia_smis_rows_and_others_passed_over() -> None:
    text = "0, 97887, NVIDIA RTX PRO 6000, Blackwell\n1, [N/A], Odd\nUnable to determine\n2, 81920, NVIDIA H200\n"
    assert parse_gpus(text) == [Gpu(0, "NVIDIA RTX PRO 6000, Blackwell", 97887 * 2**20), Gpu(2, "NVIDIA H200", 81920 * 2**20)]


def test_the_memory_limit_is_never_above_what_there_is() -> None:
    assert 0 < memory_limit_bytes() <= psutil.virtual_memory().total
