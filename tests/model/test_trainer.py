from __future__ import annotations

import pickle
from dataclasses import replace

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from dflash.data.rows import TokenRows
from dflash.errors import RefusedInput
from dflash.model.anchors import EVALUATION, draw_anchors
from dflash.model.results import merged
from dflash.model.target import FrozenTarget
from dflash.model.trainer import DrafterTrainer
from tests.model.oracle import plain_outcome
from tests.model.tiny import random_rows, tiny_config

LENGTHS = [40, 9, 64, 27, 2, 33]


@pytest.fixture
def config(target_folder):
    return tiny_config(target_folder("qwen3"))


def features_of(trainer: DrafterTrainer, rows: TokenRows, seed: int = 1) -> torch.Tensor:
    return torch.randn(len(rows.tokens), trainer.shape.feature_size, generator=torch.Generator().manual_seed(seed))


def gradients(trainer: DrafterTrainer) -> torch.Tensor:
    return trainer._window.clone()


def weights(trainer: DrafterTrainer) -> torch.Tensor:
    return torch.cat([parameter.detach().flatten() for parameter in trainer.drafter.parameters()])


def train(trainer: DrafterTrainer, first: int, last: int) -> None:
    for step in range(first, last):
        for batch in range(2):
            rows = random_rows(LENGTHS, seed=10 * step + batch)
            trainer.accumulate(rows, features_of(trainer, rows, seed=step), epoch=step)
        trainer.apply_step(1e-3 * (step + 1))


def test_loss_weights_and_gradients_are_those_of_the_plain_drafter(config):
    trainer = DrafterTrainer(config)
    rows = random_rows(LENGTHS)
    features = features_of(trainer, rows)
    result = trainer.accumulate(rows, features, epoch=3)
    anchors = draw_anchors(rows, budget=6, seed=0, epoch=3)
    loss_sum, weight_sum, expected = plain_outcome(
        trainer.shape, trainer.drafter.state_dict(), rows, features, anchors, trainer._embedding, trainer._head
    )
    assert result.loss_sum == pytest.approx(float(loss_sum), rel=1e-5)
    assert result.weight_sum == pytest.approx(float(weight_sum), rel=1e-5)
    assert (result.anchors, result.tokens, result.loss_tokens) == (len(anchors), sum(LENGTHS), int(rows.loss_mask.sum()))
    for name, parameter in trainer.drafter.named_parameters():
        torch.testing.assert_close(
            parameter.grad.double(), expected[name], rtol=1e-3, atol=2e-5 * float(expected[name].abs().max()), msg=name
        )


@pytest.mark.parametrize("family", ["qwen3", "qwen3_5_text"])
def test_padded_and_packed_batches_give_the_loss_and_gradients_of_one_conversation_at_a_time(family, target_folder):
    config = tiny_config(target_folder(family))
    rows = random_rows(LENGTHS)
    trainer = DrafterTrainer(config)
    target = FrozenTarget.load(target_folder(family), layer_ids=trainer.shape.target_layer_ids, feature_dtype="float32")
    outcomes = []
    for packed in (False, True):
        result = trainer.accumulate(rows, target.features(rows, packed=packed), epoch=0, with_metrics=True)
        outcomes.append((result, gradients(trainer)))
        trainer._window.zero_()
    singles = []
    for row in range(len(rows)):
        alone = rows.take([row])
        singles.append(trainer.accumulate(alone, target.features(alone, packed=False), epoch=0, with_metrics=True))
    outcomes.append((merged(singles), gradients(trainer)))
    one = outcomes.pop()
    for result, gradient in outcomes:
        assert result.loss_sum == pytest.approx(one[0].loss_sum, rel=1e-5)
        assert result.weight_sum == pytest.approx(one[0].weight_sum, rel=1e-6)
        assert result.metrics == one[0].metrics
        torch.testing.assert_close(gradient, one[1], rtol=1e-3, atol=1e-5 * float(one[1][:-2].abs().max()))


@pytest.mark.parametrize("positions_at_once", [1, 17, 60])
def test_a_batch_run_in_parts_gives_the_same_sums(config, positions_at_once):
    rows = random_rows(LENGTHS)
    settings = {"drafter": config.drafter.model_copy(update={"positions_at_once": positions_at_once, "noise": 0.1})}
    whole = DrafterTrainer(config.model_copy(update={"drafter": config.drafter.model_copy(update={"noise": 0.1})}))
    parts = DrafterTrainer(config.model_copy(update=settings))
    features = features_of(whole, rows)
    one, many = (trainer.accumulate(rows, features, epoch=1, with_metrics=True) for trainer in (whole, parts))
    assert many.loss_sum == pytest.approx(one.loss_sum, rel=1e-6)
    assert many.cross_entropy == pytest.approx(one.cross_entropy, rel=1e-6)
    sums = {"loss_sum": 0, "weight_sum": 0, "seconds": 0, "cross_entropy_sum": 0}
    assert replace(many, **sums) == replace(one, **sums)
    torch.testing.assert_close(gradients(parts), gradients(whole), rtol=1e-4, atol=1e-5)


def test_a_step_is_adamw_on_the_weighted_mean_over_the_window_with_clipping(config):
    config = config.model_copy(update={"optim": config.optim.model_copy(update={"clip": 0.05, "weight_decay": 0.3})})
    trainer = DrafterTrainer(config)
    reference = {name: parameter.detach().clone() for name, parameter in trainer.drafter.named_parameters()}
    moments = {name: (torch.zeros_like(tensor), torch.zeros_like(tensor)) for name, tensor in reference.items()}
    for step in range(1, 4):
        sums = [
            trainer.accumulate(rows, features_of(trainer, rows), epoch=step)
            for rows in (random_rows(LENGTHS, seed=step), random_rows([30], seed=50 + step))
        ]
        weight_sum = sum(result.weight_sum for result in sums)
        gradient = {name: parameter.grad / weight_sum for name, parameter in trainer.drafter.named_parameters()}
        norm = torch.cat([part.flatten() for part in gradient.values()]).norm()
        outcome = trainer.apply_step(1e-2)
        assert outcome.loss == pytest.approx(sum(result.loss_sum for result in sums) / weight_sum, rel=1e-5)
        assert outcome.grad_norm == pytest.approx(float(norm), rel=1e-5)
        assert not outcome.skipped
        for name, parameter in trainer.drafter.named_parameters():
            clipped = gradient[name] * min(1.0, 0.05 / float(norm))
            mean, square = moments[name]
            mean.mul_(0.9).add_(clipped, alpha=0.1)
            square.mul_(0.95).addcmul_(clipped, clipped, value=0.05)
            if parameter.ndim == 2:
                reference[name].mul_(1 - 1e-2 * 0.3)
            reference[name] -= 1e-2 * (mean / (1 - 0.9**step)) / ((square / (1 - 0.95**step)).sqrt() + 1e-8)
            torch.testing.assert_close(parameter.detach(), reference[name], rtol=1e-4, atol=1e-5)
    assert trainer.steps == 3


def test_two_replicas_take_the_step_one_would_take(config):
    batches = [random_rows(LENGTHS, seed=seed) for seed in range(3)]
    single = DrafterTrainer(config)
    for rows in batches:
        single.accumulate(rows, features_of(single, rows), epoch=0)
    alone = single.apply_step(1e-3)

    replicas = [DrafterTrainer(config), DrafterTrainer(config)]
    for replica, mine in zip(replicas, (batches[:1], batches[1:]), strict=True):
        for rows in mine:
            replica.accumulate(rows, features_of(replica, rows), epoch=0)
    total = replicas[0]._window + replicas[1]._window

    def all_reduce(flat: torch.Tensor) -> None:
        flat.copy_(total)

    outcomes = [replica.apply_step(1e-3, all_reduce) for replica in replicas]
    assert outcomes[0].loss == outcomes[1].loss == pytest.approx(alone.loss, rel=1e-6)
    assert outcomes[0].weight_sum == pytest.approx(alone.weight_sum, rel=1e-6)
    assert torch.equal(weights(replicas[0]), weights(replicas[1]))
    torch.testing.assert_close(weights(replicas[0]), weights(single), rtol=1e-5, atol=1e-6)


def everything(trainer: DrafterTrainer) -> torch.Tensor:
    return torch.cat([weights(trainer), *[tensor.flatten() for tensor in trainer._optimizer.moments().values()]])


@pytest.mark.parametrize("where", ["feature", "gradient", "replica"])
def test_a_step_that_is_not_finite_changes_nothing_and_training_goes_on(config, where):
    trainer, untouched = DrafterTrainer(config), DrafterTrainer(config)
    train(trainer, 0, 1)
    train(untouched, 0, 1)
    before = everything(trainer).clone()
    rows = random_rows(LENGTHS)
    features = features_of(trainer, rows)
    if where == "feature":
        features[0] = float("nan")
    trainer.accumulate(rows, features, epoch=0)
    if where == "gradient":
        trainer._window[5] = float("inf")

    def sum_with_a_broken_replica(flat: torch.Tensor) -> None:
        flat[7] = float("nan")

    outcome = trainer.apply_step(1e-3, sum_with_a_broken_replica if where == "replica" else None)
    assert outcome.skipped
    assert "loss" in outcome.reason or "gradient" in outcome.reason
    assert torch.equal(everything(trainer), before)
    assert trainer.steps == 1
    train(trainer, 1, 2)
    train(untouched, 1, 2)
    assert torch.equal(everything(trainer), everything(untouched))


def test_a_window_with_nothing_supervised_is_skipped_and_says_so(config):
    trainer = DrafterTrainer(config)
    rows = random_rows([20, 5], supervised=0.0)
    result = trainer.accumulate(rows, features_of(trainer, rows), epoch=0, with_metrics=True)
    assert (result.anchors, result.slots, result.loss_sum, result.metrics) == (0, 0, 0.0, None)
    outcome = trainer.apply_step(1e-3)
    assert outcome.skipped
    assert "no supervised slot" in outcome.reason


def test_stopped_saved_loaded_and_gone_on_ends_with_bit_identical_weights(config, tmp_path):
    whole = DrafterTrainer(config)
    train(whole, 0, 6)
    first = DrafterTrainer(config)
    train(first, 0, 3)
    first.save(tmp_path / "checkpoint")
    second = DrafterTrainer(config)
    second.accumulate(random_rows(LENGTHS), features_of(second, random_rows(LENGTHS)), epoch=0)  # to be forgotten
    second.load(tmp_path / "checkpoint")
    assert second.steps == 3
    train(second, 3, 6)
    assert torch.equal(everything(second), everything(whole))


def test_the_same_batches_give_the_same_bits(config):
    one, other = DrafterTrainer(config), DrafterTrainer(config)
    train(one, 0, 3)
    train(other, 0, 3)
    assert torch.equal(everything(one), everything(other))


def test_gradients_stay_in_the_flat_buffer(config):
    trainer = DrafterTrainer(config)
    train(trainer, 0, 2)
    begin = trainer._window.data_ptr()
    end = begin + trainer._window.numel() * 4
    assert all(begin <= parameter.grad.data_ptr() < end for parameter in trainer.drafter.parameters())


def test_noise_depends_on_seed_epoch_and_sample_only_and_has_the_stated_size(config):
    noisy = DrafterTrainer(config.model_copy(update={"drafter": config.drafter.model_copy(update={"noise": 0.25})}))
    plain = DrafterTrainer(config)
    rows = random_rows(LENGTHS)
    features = features_of(noisy, rows)
    exact = plain.accumulate(rows, features, epoch=0).loss_sum
    first, again, other = (noisy.accumulate(rows, features, epoch=epoch).loss_sum for epoch in (0, 0, 1))
    assert first == again
    assert first != exact
    assert first != other
    order = [3, 0, 5, 1, 4, 2]
    turned = rows.take(order)
    spans = np.concatenate([np.arange(rows.offsets[row], rows.offsets[row + 1]) for row in order])
    assert noisy.accumulate(turned, features[torch.from_numpy(spans)], epoch=0).loss_sum == pytest.approx(first, rel=1e-6)
    assert noisy.evaluate(rows, features).loss_sum == plain.evaluate(rows, features).loss_sum


def test_noise_is_relative_to_each_layers_own_root_mean_square(config):
    from dflash.model.blocks import lay_out

    trainer = DrafterTrainer(config.model_copy(update={"drafter": config.drafter.model_copy(update={"noise": 0.25})}))
    rows = random_rows([400], supervised=1.0)
    features = features_of(trainer, rows)
    features[:, 32:] *= 100
    blocks = lay_out(rows, draw_anchors(rows, budget=9, seed=0, epoch=0), block_size=5, gamma=2.0, is_causal=False)
    visible = trainer._visible_features(rows, features, blocks, noise_epoch=0)
    difference = visible - features[: len(visible)]
    for part, scale in ((slice(0, 32), 1.0), (slice(32, 64), 100.0)):
        assert difference[:, part].std() == pytest.approx(0.25 * scale, rel=0.05)


def test_metrics_count_hits_and_the_leading_run_of_each_block(config):
    trainer = DrafterTrainer(config)
    for _ in range(12):
        rows = random_rows([60, 50], seed=1, supervised=0.6)
        trainer.accumulate(rows, features_of(trainer, rows), epoch=0)
        trainer.apply_step(5e-3)
    result = trainer.accumulate(rows, features_of(trainer, rows), epoch=0, with_metrics=True)
    metrics = result.metrics

    anchors = draw_anchors(rows, budget=6, seed=0, epoch=0)
    correct, valid, streak = np.zeros(4, int), np.zeros(4, int), 0
    for row, position in zip(anchors.row, anchors.position, strict=True):
        greedy = draft_greedily(trainer, rows, features_of(trainer, rows), row, position)
        running = True
        for k in range(1, 5):
            place = rows.offsets[row] + position + k
            supervised = place < rows.offsets[row + 1] and rows.loss_mask[place]
            right = supervised and greedy[k] == rows.tokens[place]
            valid[k - 1] += supervised
            correct[k - 1] += right
            running = running and right
            streak += running
    assert metrics.correct == tuple(correct)
    assert metrics.valid == tuple(valid)
    assert (metrics.streak_sum, metrics.blocks) == (streak, len(anchors))
    assert 0.2 < metrics.accuracy < 1
    assert result.acceptance_length == streak / len(anchors) + 1


def draft_greedily(trainer, rows, features, row, position):
    """The most likely token of every slot of one block, from the plain drafter."""
    from benchmarks.plain_drafter import PlainDrafter
    from tests.model.oracle import plain_sizes

    model = PlainDrafter(plain_sizes(trainer.shape))
    model.load_state_dict(trainer.drafter.state_dict())
    span = slice(rows.offsets[row], rows.offsets[row + 1])
    tokens = torch.from_numpy(rows.tokens[span].astype(np.int64))[None]
    states = model(features[span][None], tokens, torch.tensor([[position]]), trainer._embedding)
    return (states[0, 0] @ trainer._head.T).argmax(-1).tolist()


def test_the_walk_over_answers_is_that_of_drafting_round_after_round(config):
    config = config.model_copy(update={"evaluation": config.evaluation.model_copy(update={"decode_tokens": 20})})
    trainer = DrafterTrainer(config)
    rows = random_rows([60, 50], seed=1, supervised=0.6)
    features = features_of(trainer, rows)
    for _ in range(12):
        trainer.accumulate(rows, features, epoch=0)
        trainer.apply_step(5e-3)
    tokens = rounds = 0
    for row in range(2):
        text = rows.tokens[rows.offsets[row] : rows.offsets[row + 1]]
        mask = rows.loss_mask[rows.offsets[row] : rows.offsets[row + 1]].tolist()
        at = start = mask.index(True)
        end = min(mask.index(False, start) if False in mask[start:] else len(mask), start + 20)
        while at < (end - 1 if end - start < 20 else end - 2):  # with one token left up to the limit nothing is drafted
            drafted = draft_greedily(trainer, rows, features, row, at)
            streak = 0
            while streak < 4 and at + streak + 1 < end and drafted[streak + 1] == text[at + streak + 1]:
                streak += 1
            rounds += 1
            tokens += min(streak + 1, end - 1 - at)
            at += streak + 1
    walked = trainer.evaluate(rows, features).walk
    assert (walked.answers, walked.tokens, walked.rounds) == (2, tokens, rounds)
    assert 1.2 < walked.acceptance_length < 4.5


def test_evaluation_changes_nothing_and_repeats_itself(config):
    trainer = DrafterTrainer(config)
    rows = random_rows(LENGTHS)
    features = features_of(trainer, rows)
    before = everything(trainer).clone()
    one, other = trainer.evaluate(rows, features), trainer.evaluate(rows, features)
    assert replace(one, seconds=0.0) == replace(other, seconds=0.0)
    assert one.anchors == len(draw_anchors(rows, budget=64, seed=0, epoch=EVALUATION))
    assert torch.equal(everything(trainer), before)
    assert not trainer._window.any()


def test_bfloat16_autocast_keeps_float32_masters_and_stays_near(config):
    half = DrafterTrainer(config.model_copy(update={"drafter": config.drafter.model_copy(update={"precision": "bfloat16"})}))
    full = DrafterTrainer(config)
    rows = random_rows(LENGTHS)
    features = features_of(full, rows)
    assert half.accumulate(rows, features, epoch=0).loss == pytest.approx(full.accumulate(rows, features, epoch=0).loss, rel=0.01)
    assert (gradients(half) - gradients(full))[:-2].norm() < 0.05 * gradients(full)[:-2].norm()
    half.apply_step(1e-3)
    assert all(parameter.dtype == torch.float32 for parameter in half.drafter.parameters())


@pytest.mark.slow
def test_compiled_parts_give_the_same_loss_and_gradients(config):
    compiled = DrafterTrainer(config.model_copy(update={"drafter": config.drafter.model_copy(update={"compile": True})}))
    plain = DrafterTrainer(config)
    for seed in range(2):
        rows = random_rows(LENGTHS[seed:], seed=seed)
        results = [trainer.accumulate(rows, features_of(plain, rows), epoch=0) for trainer in (compiled, plain)]
        assert results[0].loss_sum == pytest.approx(results[1].loss_sum, rel=1e-5)
    torch.testing.assert_close(gradients(compiled), gradients(plain), rtol=1e-3, atol=1e-4)
    assert set(compiled.drafter.state_dict()) == set(plain.drafter.state_dict())


def saved(config, folder):
    trainer = DrafterTrainer(config)
    train(trainer, 0, 1)
    trainer.save(folder)
    return folder


def test_a_checkpoint_holds_float32_tensors_and_the_drafters_config(config, tmp_path):
    folder = saved(config, tmp_path / "c")
    assert sorted(path.name for path in folder.iterdir()) == ["config.json", "model.safetensors", "optimizer.safetensors"]
    model, moments = load_file(folder / "model.safetensors"), load_file(folder / "optimizer.safetensors")
    assert len(model) == 2 * 11 + 3
    assert len(moments) == 2 * len(model)
    assert all(tensor.dtype == torch.float32 for tensor in [*model.values(), *moments.values()])


@pytest.mark.parametrize("file", ["model.safetensors", "optimizer.safetensors"])
@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda tensors: tensors.pop(next(iter(tensors))), "missing: "),
        (lambda tensors: tensors.update(stranger=torch.ones(2)), "unknown: stranger"),
        (lambda tensors: tensors.update({next(iter(tensors)): torch.ones(2)}), r"misshapen: .*\(2,\) instead of"),
    ],
)
def test_a_checkpoint_that_does_not_fit_is_refused_and_changes_nothing(config, tmp_path, file, change, message):
    folder = saved(config, tmp_path / "c")
    tensors = load_file(folder / file)
    change(tensors)
    save_file(tensors, folder / file)
    trainer = DrafterTrainer(config)
    before = weights(trainer).clone()
    with pytest.raises(RefusedInput, match=message):
        trainer.load(folder)
    assert torch.equal(weights(trainer), before)


@pytest.mark.parametrize("file", ["model.safetensors", "optimizer.safetensors"])
def test_a_truncated_or_missing_file_is_refused(config, tmp_path, file):
    folder = saved(config, tmp_path / "c")
    (folder / file).write_bytes((folder / file).read_bytes()[:-200])
    with pytest.raises(RefusedInput, match=rf"{file}: can't be read .*another checkpoint"):
        DrafterTrainer(config).load(folder)
    (folder / file).unlink()
    with pytest.raises(RefusedInput, match=rf"{file}: can't be read"):
        DrafterTrainer(config).load(folder)


def test_a_checkpoint_of_equal_tensors_but_other_rules_is_refused(config, tmp_path):
    folder = saved(config, tmp_path / "c")
    other = config.model_copy(update={"drafter": config.drafter.model_copy(update={"target_layer_ids": [1, 2], "block_size": 8})})
    with pytest.raises(RefusedInput, match=r"block_size 5 instead of 8.*target_layer_ids \(0, 2\) instead of \(1, 2\)"):
        DrafterTrainer(other).load(folder)


def test_features_of_other_tokens_are_a_programming_error(config):
    trainer = DrafterTrainer(config)
    rows = random_rows(LENGTHS)
    with pytest.raises(ValueError, match="rows of features"):
        trainer.accumulate(rows, features_of(trainer, rows)[1:], epoch=0)


def test_results_can_be_sent_between_processes(config):
    trainer = DrafterTrainer(config)
    rows = random_rows(LENGTHS)
    for result in (trainer.accumulate(rows, features_of(trainer, rows), epoch=0, with_metrics=True), trainer.apply_step(1e-3)):
        assert pickle.loads(pickle.dumps(result)) == result
