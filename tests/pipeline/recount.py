"""A recount of all samples trained, made from the events and apart from the ledger."""

from collections import Counter

from dflash.runs.folder import RunFolder
from dflash.telemetry.reader import read_events


def recount(run: RunFolder) -> Counter[tuple[int, int]]:
    """How often each (epoch, sample) was trained on.

    A step reported again (after a return to a checkpoint, or a resume) replaces its first report, and takes with it all later ones.
    """
    batches: dict[str, list[int]] = {}
    steps: dict[int, tuple[int, list[list[int]]]] = {}
    for event in read_events(run.events, "batch", "step"):
        if event["event"] == "batch":
            batches[event["batch"]] = event["samples"]
        else:
            steps = {step: kept for step, kept in steps.items() if step < event["step"]}
            steps[event["step"]] = (event["epoch"], [batches[batch] for batch in event["batch_ids"]])
    return Counter((epoch, sample) for epoch, groups in steps.values() for group in groups for sample in group)
