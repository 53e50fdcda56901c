"""Documents, pre-tokenised rows, the length limit, and tokens that straddle the edge of a span."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dflash.data.conversation import Conversation, Document, Pretokenised, RowRejected
from dflash.data.encode import RowEncoder, has_neighbours, mask_of_spans
from dflash.data.options import PrepareOptions
from dflash.data.tokenizer import TextTokenizer
from dflash.errors import RefusedInput


def encoder(tokenizer: TextTokenizer, **options: Any) -> RowEncoder:
    return RowEncoder(tokenizer, PrepareOptions(**options))


def test_document_is_supervised_but_for_its_first_token(tokenizer: TextTokenizer) -> None:
    found = encoder(tokenizer).encode(Document("the quick brown fox"))
    assert found.tokens.tolist() == tokenizer.backend().encode("the quick brown fox").ids
    assert found.loss_mask.tolist() == [False, *[True] * (len(found.tokens) - 1)]


def test_pretokenised_row_keeps_its_ids_and_mask(tokenizer: TextTokenizer) -> None:
    found = encoder(tokenizer).encode(Pretokenised([5, 6, 7, tokenizer.vocab_size - 1], [0, True, 1, False]))
    assert found.tokens.tolist() == [5, 6, 7, tokenizer.vocab_size - 1]
    assert found.tokens.dtype == np.int32
    assert found.loss_mask.tolist() == [False, True, True, False]
    assert encoder(tokenizer).encode(Pretokenised([5, 6, 7], None)).loss_mask.tolist() == [False, True, True]


@pytest.mark.parametrize(
    ("ids", "mask", "reason"),
    [
        ([5, 6, 7], [1, 1], "loss mask of another length: 2 for 3 tokens"),
        ([5, 6, 7], [1, 1, 2], "loss mask is not 0 and 1: it holds 2"),
        ([5, 6, 7], [1, 1, None], "null: loss_mask holds null at position 2"),
        ([5, 6, 7], [1, 0.5, 1], "not token ids: loss_mask holds '0.5' at position 1"),
        ([5, 6, 333], None, "token id outside the vocabulary: 333 at position 2; the vocabulary has 333"),
        ([5, -1, 7], None, "token id outside the vocabulary: -1 at position 1"),
        ([5, 10**30, 7], None, "token id outside the vocabulary: -1 at position 1"),
        ([5, None, 7], None, "null: input_ids holds null at position 1"),
        ([5, 6.0, 7], None, "not token ids: input_ids holds '6.0' at position 1"),
        ([5, "6", 7], None, "not token ids: input_ids holds '6' at position 1"),
        ([[5, 6, 7]], None, "not token ids: input_ids holds '[5, 6, 7]' at position 0"),
        ([5, True], None, "not token ids: input_ids holds 'True' at position 1"),
        ("5 6 7", None, "not token ids: input_ids is not a list"),
        ([], [], "empty text: input_ids is empty"),
        ([5, 6, 7], [0, 0, 0], "fewer than two supervised tokens: no two side by side, of 3 tokens in all"),
        ([5, 6, 7], [1, 0, 1], "fewer than two supervised tokens"),
        ([5], None, "fewer than two supervised tokens"),
        ([5, 6], None, "fewer than two supervised tokens"),
    ],
)
def test_bad_pretokenised_row_is_rejected_for_its_own_reason(tokenizer: TextTokenizer, ids: Any, mask: Any, reason: str) -> None:
    with pytest.raises(RowRejected) as caught:
        encoder(tokenizer).encode(Pretokenised(ids, mask))
    assert str(caught.value).startswith(reason)


def test_over_long_row_is_cut_or_rejected_as_asked(tokenizer: TextTokenizer) -> None:
    row = Pretokenised(list(range(10)), None)
    found = encoder(tokenizer, max_length=4).encode(row)
    assert (found.tokens.tolist(), found.loss_mask.tolist(), found.cut) == ([0, 1, 2, 3], [False, True, True, True], 6)
    assert not encoder(tokenizer, max_length=10).encode(row).cut
    with pytest.raises(RowRejected, match="over-long: 10 tokens, the limit is 9"):
        encoder(tokenizer, max_length=9, over_long="reject").encode(row)


def test_row_with_nothing_supervised_left_after_the_cut_is_rejected(tokenizer: TextTokenizer) -> None:
    with pytest.raises(RowRejected, match="no two side by side within the first 3 tokens, of 6 tokens in all"):
        encoder(tokenizer, max_length=3).encode(Pretokenised([1, 2, 3, 4, 5, 6], [0, 0, 1, 1, 1, 1]))


def test_conversation_without_template_is_rejected_but_documents_are_not(tokenizer: TextTokenizer) -> None:
    from dataclasses import replace

    bare = encoder(replace(tokenizer, chat_template=None))
    with pytest.raises(RowRejected, match="no chat template"):
        bare.encode(Conversation([{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]))
    assert bare.encode(Document("the quick brown fox")).loss_mask.any()


def test_template_that_is_no_template_is_refused_with_its_line(tokenizer: TextTokenizer) -> None:
    with pytest.raises(RefusedInput, match=r"chat template is not valid \(line 2"):
        encoder(tokenizer, chat_template="fine\n{% for %}")


@pytest.mark.parametrize("options", [{"max_length": 1}, {"loss_on": "some"}, {"over_long": "drop"}, {"workers": -1}])
def test_option_out_of_bounds_is_refused_by_name(options: dict[str, Any]) -> None:
    with pytest.raises(RefusedInput, match=next(iter(options))):
        PrepareOptions(**options)


@given(st.text(alphabet="a \n", min_size=1, max_size=30), st.data())
def test_mask_of_spans_is_the_mask_of_characters(text: str, data: st.DataObject) -> None:
    cuts = sorted(data.draw(st.sets(st.integers(0, len(text)), min_size=2)))
    offsets = list(itertools.pairwise(cuts))
    edges = sorted(data.draw(st.sets(st.integers(0, len(text)), max_size=6)))
    spans = list(zip(edges[::2], edges[1::2], strict=False))
    inside = {i for first, last in spans for i in range(first, last)}
    expected = [
        any(i in inside for i in range(a, b)) and all(i in inside or text[i].isspace() for i in range(a, b)) for a, b in offsets
    ]
    if all(sum(first < b and last > a for first, last in spans) <= 1 for a, b in offsets):  # no token reaches into two spans
        assert mask_of_spans(text, offsets, spans).tolist() == expected


@given(st.lists(st.booleans(), max_size=12))
def test_neighbours_are_two_true_in_a_row(mask: list[bool]) -> None:
    assert has_neighbours(np.array(mask, dtype=bool)) == any(a and b for a, b in itertools.pairwise(mask))
