"""Which conversations a batch was made of: the planner is asked again, since a plan is decided by lengths, settings and epoch alone.

Only for batches of an epoch's first segment in a run whose batching was not changed live (later segments hold what was left, which only the
ledger in the checkpoints knows), and only where the data set is at hand. The plan made again must have as many batches as the run said it had.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from dflash.analysis.eventlog import EventLog
from dflash.batching.plan import plan_epoch
from dflash.data.dataset import TokenDataset
from dflash.errors import RefusedInput
from dflash.pipeline.plans import split_holdout

_REPLANS = ("batching.", "optim.accumulate")


def samples_of(log: EventLog, batches: Iterable[str]) -> dict[str, list[int]]:
    """Sample ids of each batch, by its id as events have it (epoch.segment.number).

    Raises:
        RefusedInput: the batches can't be made again; the message says why.
    """
    config = log.run.config()
    changed = [event["key"] for event in log.rare["change"] if event.get("accepted") and str(event.get("key")).startswith(_REPLANS)]
    if changed:
        raise RefusedInput(
            f"{log.run.path}: {changed[0]} was changed while it ran, so its batches can't be planned again from config.yaml"
        )
    dataset = TokenDataset.open(Path(config.data.path))
    kept, _ = split_holdout(len(dataset), config.data.holdout, config.optim.seed)
    said = {(plan["epoch"], plan["segment"]): plan["batches"] for plan in log.rare["plan"]}
    plans = {}
    found = {}
    for batch in batches:
        epoch, segment, number = (int(part) for part in batch.split("."))
        if segment:
            raise RefusedInput(f"batch {batch}: it was planned anew after a resume, which only the checkpoint's ledger knows")
        if epoch not in plans:
            plans[epoch] = plan_epoch(dataset.lengths, config.batching, epoch=epoch, window=config.window, sample_ids=kept)
        if said.get((epoch, 0), len(plans[epoch])) != len(plans[epoch]):
            raise RefusedInput(f"{config.data.path}: not the data the run was trained on: its plan has another number of batches")
        found[batch] = [int(sample) for sample in plans[epoch].batch(number)]
    return found
