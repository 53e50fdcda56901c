"""`dflash cache`: a run's features computed before it starts, batch by batch as its first epoch is planned.

So what is kept is to the bit what the first epoch would have computed.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn

from dflash.batching.plan import plan_epoch
from dflash.config import RunConfig
from dflash.data.dataset import TokenDataset
from dflash.model.feature_cache import FeatureCache
from dflash.pipeline.cached_features import cache_line, describe_cache, prepare_cache
from dflash.pipeline.evaluation import plan_holdout
from dflash.pipeline.ledger import Ledger
from dflash.pipeline.plans import PlanStream, split_holdout
from dflash.pipeline.stages import RealStages
from dflash.pipeline.train import check_fits


@dataclass(frozen=True)
class Filled:
    """What `dflash cache` did.

    Attributes:
        folder: the cache.
        fingerprint: of what it is made of.
        samples: filled now, of the data set's `of_samples`.
        computed_tokens: by this command.
        seconds: it took, the target's loading included.
        tokens_per_second: computed.
        size_bytes: of the whole cache.
        token_bytes: of one token's features.
        relative_rms_error, cosine: of what is kept against what was computed, over all that is filled.
    """

    folder: Path
    fingerprint: str
    samples: int
    of_samples: int
    computed_tokens: int
    seconds: float
    tokens_per_second: float
    size_bytes: int
    token_bytes: int
    relative_rms_error: float
    cosine: float


def fill_cache(config: RunConfig, *, progress: bool, show: Callable[[str], None]) -> Filled:
    """Compute the features of every sample that the cache of a run lacks, held-out ones included. Begun again, it goes on.

    Args:
        config: the run's settings; its features are cached whatever target.features says.
        progress: whether a bar goes to standard error.
        show: told of the disk that will be taken.

    Raises:
        RefusedInput: as `prepare_cache`, or the target doesn't fit the data.
        RunFailed: the disk is full; what was finished is kept.
    """
    started = time.monotonic()
    config = config.model_copy(update={"target": config.target.model_copy(update={"features": "cached"})})
    dataset = TokenDataset.open(Path(config.data.path))
    facts = prepare_cache(config, dataset, check_fits(config, dataset))
    assert facts is not None
    show(cache_line(describe_cache(facts, dataset)))
    cache, target = FeatureCache(facts, dataset.lengths), RealStages(config, cache=facts).target(0)
    kept, held_out = split_holdout(len(dataset), config.data.holdout, config.optim.seed)
    stream = PlanStream(dataset.lengths, kept, config, Ledger())
    plan = plan_epoch(stream.lengths, config.batching, epoch=0, window=config.window, sample_ids=kept)
    batches = [*plan_holdout(stream, dataset.loss_tokens, held_out), *stream.describe_plan(plan)]
    computed = 0
    columns = (TextColumn("features"), BarColumn(), TaskProgressColumn(), TextColumn("{task.fields[told]}"), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True), disable=not progress) as bar:
        task = bar.add_task("features", total=sum(batch.tokens for batch in batches), told="")
        for batch in batches:
            there = cache.holds(batch.samples)
            if not there.all():
                target.features(dataset.rows(batch.samples), packed=batch.packed)
                computed += int(dataset.lengths[batch.samples[~there]].sum())
            rate = computed / (time.monotonic() - started)
            bar.update(task, advance=batch.tokens, told=f"{rate:,.0f} tokens/s")
    seconds, state = time.monotonic() - started, cache.state()
    return Filled(
        folder=facts.folder,
        fingerprint=facts.fingerprint,
        samples=state.samples,
        of_samples=facts.samples,
        computed_tokens=computed,
        seconds=seconds,
        tokens_per_second=computed / seconds,
        size_bytes=facts.size_bytes,
        token_bytes=facts.token_bytes,
        relative_rms_error=state.relative_rms_error,
        cosine=state.cosine,
    )
