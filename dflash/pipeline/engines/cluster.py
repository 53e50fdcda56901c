"""Ray itself: start it on this machine or join a cluster, with room for the pool, and a GPU a worker where there are any."""

from __future__ import annotations

import logging
import os
import shutil
from pathlib import Path

import psutil
import ray
import torch

from dflash.config import RunConfig
from dflash.errors import RefusedInput, RunFailed
from dflash.pipeline.engines.ray_processes import RayProcesses

_STORE_SLACK_BYTES = 256 * 2**20
_STORE_SHARE_OF_MEMORY = 0.5
STARTS = 3
_QUIET = {"log_to_driver": False, "logging_level": logging.ERROR}
_ENVIRONMENT = {
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
    # Ray runs workers at niceness 15; ours are the work itself, and anything else on the machine would starve them.
    "RAY_worker_niceness": "0",
    # On a busy machine a worker takes minutes to import torch; Ray gives up after one and starts it again, for ever.
    "RAY_worker_register_timeout_seconds": "900",
}


def connect(config: RunConfig) -> bool:
    """Join the cluster named in the config, or start Ray on this machine. Returns whether it was started here.

    Raises:
        RunFailed: Ray can't be reached or started.
    """
    if ray.is_initialized():
        raise RunFailed(
            "this process uses Ray for something else; end that with ray.shutdown(), or start the run with --background"
        )
    os.environ.update(_ENVIRONMENT)
    address = config.pipeline.ray_address
    _let_ray_print(False)
    try:
        if address is not None:
            ray.init(address=address, **_QUIET)
        else:
            _start_here(config)
    except Exception as error:  # Ray raises all kinds, bare ones among them
        _let_ray_print(True)
        where = f"the cluster at pipeline.ray_address={address}" if address else "Ray on this machine"
        raise RunFailed(f"can't reach or start {where}: {error}{_hint(error)}") from error
    return address is None


def _hint(error: BaseException | None) -> str:
    """What to do, where Ray's outermost error does not say what its causes know."""
    while error is not None:
        if "InvalidAuthToken" in str(error):
            return "; it asks for a token: set RAY_AUTH_MODE=token, with the cluster's token in ~/.ray/auth_token or RAY_AUTH_TOKEN"
        error = error.__cause__ or error.__context__
    return ""


def _start_here(config: RunConfig) -> None:
    """Start Ray on this machine, again if need be: on a busy one its daemons may take longer than the 30 seconds it allows them."""
    for attempt in range(1, STARTS + 1):
        try:
            # Actors take no CPU slots; their number is how many workers Ray starts at a time.
            store = store_bytes(config.pool.capacity_bytes)
            ray.init(address="local", object_store_memory=store, num_cpus=os.cpu_count(), include_dashboard=False, **_QUIET)
            return
        except Exception as error:
            ray.shutdown()
            RayProcesses.of_this_process().end()
            if attempt == STARTS:
                raise
            logging.getLogger(__name__).warning("Ray did not start, try %d of %d: %s", attempt, STARTS, error)


def disconnect() -> None:
    """Leave the cluster; a Ray that was started here ends. Harmless when there is none."""
    ray.shutdown()
    _let_ray_print(True)


def _let_ray_print(may: bool) -> None:
    """Whether Ray's library prints its own messages (of workers that died, say) on this process's standard output, where results go.

    No setting of Ray's does this; its debugger uses the same switch. What is worth telling, the run tells itself.
    """
    ray._private.worker._worker_logs_enabled = may


def store_bytes(capacity_bytes: int) -> int:
    """Bytes of object store for a pool of that capacity: no more than half of memory and nine tenths of free shared memory.

    A pool that is larger spills to disk through Ray, which is slow but loses nothing.
    """
    shared = Path("/dev/shm")
    free = shutil.disk_usage(shared).free if shared.is_dir() else psutil.virtual_memory().available
    ceiling = int(min(psutil.virtual_memory().total * _STORE_SHARE_OF_MEMORY, free * 0.9))
    return min(capacity_bytes + _STORE_SLACK_BYTES, ceiling)


def gpus_per_worker(config: RunConfig) -> float:
    """GPUs of each target and each drafter: one, or none when the run is on the CPU.

    Raises:
        RefusedInput: there are fewer GPUs than workers.
    """
    pipeline = config.pipeline
    if pipeline.device == "cpu" or (pipeline.device == "auto" and not torch.cuda.is_available()):
        return 0.0
    wanted, there = pipeline.targets + pipeline.drafters, int(ray.cluster_resources().get("GPU", 0))
    if there < wanted:
        raise RefusedInput(
            f"pipeline: {pipeline.targets} targets and {pipeline.drafters} drafters need {wanted} GPUs, there are {there}; "
            "lower the counts, or set pipeline.device=cpu"
        )
    return 1.0
