from dflash.telemetry.reader import read_events
from dflash.telemetry.system import SystemSampler, parse_gpus, sample_system


def test_a_sample_counts_this_process(tmp_path):
    sample = sample_system(tmp_path)
    assert 0 < sample["run_memory_bytes"] <= sample["memory_used_bytes"] + sample["memory_available_bytes"]
    assert sample["disk_free_bytes"] > 0


def test_the_sampler_writes_until_it_is_closed(tmp_path):
    with SystemSampler(tmp_path, every_seconds=0.02):
        while not read_events(tmp_path, "system"):
            pass
    assert all(event["cpu_percent"] >= 0 for event in read_events(tmp_path))


def test_gpu_rows_are_read_with_their_units_and_gaps():
    gpus = parse_gpus("0, 87, 40960, 412.5, 61\n1, 3, 512, [N/A], 40\n")
    assert gpus[0] == {
        "gpu": 0.0,
        "utilization_percent": 87.0,
        "memory_used_bytes": 40960.0 * 2**20,
        "power_watts": 412.5,
        "temperature_celsius": 61.0,
    }
    assert "power_watts" not in gpus[1]
