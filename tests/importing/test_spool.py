import polars as pl
import pytest

from dflash.importing.spool import Spool

FRAMES = [
    pl.DataFrame({"line": [1, 2], "loss": [1.0, None]}),
    pl.DataFrame({"line": [3], "text": ["x"], "counts": [[1, 2]]}),
    pl.DataFrame({"line": [4]}),
]


@pytest.mark.parametrize("most_bytes", [0, 40, 2**20])
def test_frames_come_back_in_order_with_all_columns_from_memory_and_from_disk(tmp_path, most_bytes):
    with Spool(tmp_path, most_bytes) as spool:
        for frame in FRAMES:
            spool.append(frame)
        for _ in range(2):
            assert pl.concat(spool, how="diagonal").equals(pl.concat(FRAMES, how="diagonal"))
        assert all(set(frame.columns) == {"line", "loss", "text", "counts"} for frame in spool)
        written = list(tmp_path.rglob("*.arrow"))
        assert len(written) == {0: 3, 40: 2, 2**20: 0}[most_bytes]
    assert list(tmp_path.iterdir()) == []
