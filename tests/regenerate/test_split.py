import json
import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dflash.errors import RefusedInput
from dflash.regenerate.questions import ALIKE, groups_of, normalised
from dflash.regenerate.split import split_rows
from tests.conftest import WORDS
from tests.regenerate.conftest import read_rows, write_rows


def rows_with(questions):
    return [
        {"messages": [{"role": "user", "content": question}, {"role": "assistant", "content": f"answer {number}"}]}
        for number, question in enumerate(questions)
    ]


def asked(rows):
    return [normalised(row["messages"][0]["content"]) for row in rows]


@settings(max_examples=25)
@given(st.lists(st.sampled_from("ABCDEFGH"), min_size=3, max_size=30), st.floats(0.1, 0.7), st.integers(0, 5))
def test_no_question_is_on_both_sides_and_every_row_on_one(tmp_path_factory, letters, share, seed):
    folder = tmp_path_factory.mktemp("split")
    draws = random.Random(seed)
    rows = rows_with([f"{'  ' if draws.random() < 0.5 else ''}What is {letter}{'?' * draws.randint(0, 2)}" for letter in letters])
    source = write_rows(folder / "in.jsonl", rows)
    try:
        figures = split_rows([source], folder / "train.jsonl", folder / "holdout.jsonl", share=share, seed=seed)
    except RefusedInput:
        assert min(letters.count(letter) for letter in letters) > round(share * len(rows)) or len(set(letters)) == 1
        return
    train, holdout = read_rows(folder / "train.jsonl"), read_rows(folder / "holdout.jsonl")
    assert not set(asked(train)) & set(asked(holdout))
    assert sorted(map(json.dumps, train + holdout)) == sorted(map(json.dumps, rows))
    assert (figures["train_rows"], figures["holdout_rows"]) == (len(train), len(holdout))
    assert figures["questions"] == len(set(letters))
    assert figures["holdout_rows"] <= max(1, round(share * len(rows)))


def jaccard(left, right):
    left, right = ({tuple(words[i : i + 3]) for i in range(max(1, len(words) - 2))} for words in (left.split(), right.split()))
    return len(left & right) / len(left | right)


def test_nearly_identical_questions_are_of_one_group():
    draws = random.Random(1)
    questions = []
    for _ in range(60):
        words = draws.choices(WORDS, k=50) if draws.random() < 0.5 or not questions else questions[-1].split()
        if draws.random() < 0.7:
            words[draws.randrange(len(words))] = "other"
        questions.append(" ".join(words))
    groups = groups_of(questions)
    for left in range(60):
        for right in range(left):
            if jaccard(questions[left], questions[right]) >= ALIKE:
                assert groups[left] == groups[right], (questions[left], questions[right])
    assert len(set(groups.tolist())) > 10


def test_a_split_is_the_same_for_the_same_seed_and_another_for_another(tmp_path):
    source = write_rows(tmp_path / "in.jsonl", rows_with([f"question {n} of {n * 7}" for n in range(60)]))

    def held(name, seed):
        split_rows([source], tmp_path / f"{name}-train.jsonl", tmp_path / f"{name}.jsonl", rows=6, seed=seed)
        return (tmp_path / f"{name}.jsonl").read_text()

    assert held("a", 1) == held("b", 1) != held("c", 2)
    assert len(held("d", 3).splitlines()) == 6


@pytest.mark.parametrize(
    ("change", "told"),
    [({"share": 1.5}, "between 0 and 1"), ({"rows": 500}, "can't be held out"), ({"holdout": "train.jsonl"}, "two files"),
     ({"train": "in.jsonl"}, "is an input"), ({"train": "there.jsonl"}, "is there already")],
)  # fmt: skip
def test_what_can_not_be_split_is_refused(tmp_path, change, told):
    source = write_rows(tmp_path / "in.jsonl", rows_with(["a b c", "d e f"]))
    (tmp_path / "there.jsonl").touch()
    train, holdout = (tmp_path / change.pop(name, f"{name}.jsonl") for name in ("train", "holdout"))
    with pytest.raises(RefusedInput, match=told):
        split_rows([source], train, holdout, **change)
    assert not list(tmp_path.glob("*.scrap"))
