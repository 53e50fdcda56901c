"""Batched answers are those of the library's own `generate` on one chat alone, on every family that has slots."""

import random

import pytest
import torch

from dflash.regenerate.alone import TargetAlone, rows_change_each_other
from dflash.regenerate.answers import Request
from dflash.regenerate.batch import BatchedTarget
from dflash.regenerate.options import RegenerateOptions
from dflash.regenerate.slots import SlotCache
from dflash.serving.cached_target import DecodingTarget
from tests.model.tiny import VOCABULARY, save_target
from tests.serving.conftest import FAMILIES


@pytest.fixture(scope="module")
def tiny(tmp_path_factory):
    made = {}

    def load(name):
        if name not in made:
            family, changes = FAMILIES[name]
            folder = save_target(tmp_path_factory.mktemp(name), family, **{**changes, "eos_token_id": 7})
            made[name] = DecodingTarget.load(folder, layer_ids=[])
        return made[name]

    return load


def requests_of(lengths, limit, vocabulary=VOCABULARY, seed=0):
    draws = random.Random(seed)
    return [
        Request(number, 0, [draws.randrange(8, vocabulary) for _ in range(length)], limit if number % 4 else limit // 2)
        for number, length in enumerate(lengths)
    ]


def answers_of(engine, requests):
    """All answers by chat, the requests handed in as the engine wants them."""
    requests, found = list(requests), {}
    while True:
        wanted = engine.wanted
        engine.add(requests[:wanted])
        requests = requests[wanted:]
        answers = engine.collect()
        if not answers:
            return found
        for answer in answers:
            assert answer.chat not in found
            found[answer.chat] = answer


def written(answer):
    return answer.ids + ([] if answer.end is None else [answer.end])


def generated(target, request):
    model = target.model
    out = model.generate(torch.tensor([request.prompt]), max_new_tokens=request.limit, do_sample=False, pad_token_id=0)
    return out[0, len(request.prompt) :].tolist()


LENGTHS = [1, 2, 30, 9, 9, 41, 5, 60, 2]


@pytest.mark.parametrize("family", sorted(FAMILIES))
def test_greedy_answers_are_those_of_generate(tiny, family):
    target = tiny(family)
    requests = requests_of(LENGTHS, limit=14)
    expected = {request.chat: generated(target, request) for request in requests}
    for budget in (220, 4_000):
        found = answers_of(BatchedTarget(target, RegenerateOptions(token_budget=budget, max_rows=5)), requests)
        assert {number: written(answer) for number, answer in found.items()} == expected
        assert {answer.finish for answer in found.values()} <= {"stop", "limit"}
        assert all((answer.end is None) == (answer.finish == "limit") for answer in found.values())


@pytest.mark.parametrize("name", ["qwen3-tiny", "qwen3_5-tiny"])
def test_shipped_targets_answer_as_alone(shipped_target, form, name):
    target = shipped_target(name)
    questions = ["How is `print` implemented?", "Explain the class `Path` of `pathlib`.", "Write a loop." * 9, "Why?"]
    requests = [Request(n, 0, form.prompt([{"role": "user", "content": text}]), 24) for n, text in enumerate(questions)]
    found = answers_of(BatchedTarget(target, RegenerateOptions(), form.end_tokens), requests)
    for request in requests:
        assert written(found[request.chat]) == generated(target, request)


def test_the_budget_bounds_the_buffers_and_one_longer_row_runs_alone(tiny):
    engine = BatchedTarget(tiny("qwen3"), RegenerateOptions(token_budget=256, max_rows=8))
    sizes = set()
    original = engine._cache.resize

    def resize(slots, places, like, keep=0):
        sizes.add((slots, places))
        original(slots, places, like, keep)

    engine._cache.resize = resize
    answers_of(engine, requests_of([300, *LENGTHS], limit=12))
    assert (1, 320) in sizes
    assert len(sizes) > 1
    assert all(slots * places <= 256 for slots, places in sizes if slots > 1)


@pytest.mark.parametrize("family", ["qwen3", "qwen3_5"])
def test_drawn_answers_do_not_depend_on_the_batch(tiny, family):
    target = tiny(family)
    requests = requests_of(LENGTHS[:6], limit=10, seed=3)
    options = {"temperature": 0.8, "top_p": 0.9, "seed": 5}
    alone = answers_of(TargetAlone(target, RegenerateOptions(**options)), requests)
    for budget, rows in ((150, 3), (4_000, 8)):
        batched = answers_of(
            BatchedTarget(target, RegenerateOptions(**options, token_budget=budget, max_rows=rows)), requests[::-1]
        )
        assert {n: written(a) for n, a in batched.items()} == {n: written(a) for n, a in alone.items()}
    other = answers_of(TargetAlone(target, RegenerateOptions(**{**options, "seed": 6})), requests)
    assert {n: written(a) for n, a in other.items()} != {n: written(a) for n, a in alone.items()}


def test_alone_answers_as_generate(tiny):
    target = tiny("llama")
    requests = requests_of([1, 9, 30], limit=10)
    found = answers_of(TargetAlone(target, RegenerateOptions()), requests)
    assert [written(found[request.chat]) for request in requests] == [generated(target, request) for request in requests]


def test_what_can_not_be_batched_exactly_is_known(tiny):
    assert SlotCache.holds(tiny("qwen3_5").model.config)
    config = tiny("llama").model.config
    assert not rows_change_each_other(config)
    config = type(config)(**{**config.to_dict(), "rope_parameters": {"rope_type": "dynamic", "rope_theta": 1e4, "factor": 2.0}})
    assert rows_change_each_other(config)
