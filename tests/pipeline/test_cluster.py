"""Ray started or reached, or why not; no Ray is started here."""

import pytest
import ray

from dflash.errors import RunFailed
from dflash.pipeline.engines import cluster


def failing(monkeypatch, errors):
    """Let `ray.init` raise these in turn, then succeed; returns the settings of each call."""
    calls = []

    def init(**settings):
        calls.append(settings)
        if errors:
            raise errors.pop(0)

    monkeypatch.setattr(ray, "init", init)
    return calls


def test_ray_is_started_again_when_its_daemons_were_too_slow(monkeypatch, small_config):
    calls = failing(monkeypatch, [Exception("The current node timed out during startup."), RuntimeError("busy")])
    assert cluster.connect(small_config("pipeline.engine=ray")) is True
    assert [call["address"] for call in calls] == ["local"] * 3


def test_what_keeps_ray_from_starting_is_told_in_the_end(monkeypatch, small_config):
    calls = failing(monkeypatch, [Exception("The current node timed out during startup.")] * 9)
    with pytest.raises(RunFailed, match=r"can't reach or start Ray on this machine: The current node timed out"):
        cluster.connect(small_config("pipeline.engine=ray"))
    assert len(calls) == cluster.STARTS


def test_a_cluster_that_asks_for_a_token_is_told_from_one_that_is_not_there(monkeypatch, small_config):
    config = small_config("pipeline.engine=ray", "pipeline.ray_address=host:6379")
    inner = RuntimeError("RPC error: InvalidAuthToken: Authentication token is missing or incorrect")
    outer = ConnectionError("Failed to connect")
    outer.__cause__ = inner
    failing(monkeypatch, [outer, ConnectionError("Failed to connect")])
    with pytest.raises(RunFailed, match=r"ray_address=host:6379: Failed to connect; it asks for a token: set RAY_AUTH_MODE=token"):
        cluster.connect(config)
    with pytest.raises(RunFailed, match=r"ray_address=host:6379: Failed to connect$"):
        cluster.connect(config)


def test_a_process_that_uses_ray_already_is_not_taken_from_its_user(monkeypatch, small_config):
    monkeypatch.setattr(ray, "is_initialized", lambda: True)
    with pytest.raises(RunFailed, match=r"uses Ray for something else.*--background"):
        cluster.connect(small_config("pipeline.engine=ray"))


@pytest.fixture(autouse=True)
def ray_may_print_again():
    yield
    cluster._let_ray_print(True)
