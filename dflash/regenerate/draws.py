"""The next token of each row: the most likely one, or one drawn.

A draw needs one number in [0, 1). It is a hash of (seed, chat, turn, place in the answer), by SplitMix64 (Steele, Lea and Flood 2014,
doi 10.1145/2660193.2660195), so it is the same in whatever batch, on whatever machine, after whatever stop the row is answered.
"""

from __future__ import annotations

import hashlib

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

_GOLDEN = np.uint64(0x9E3779B97F4A7C15)


def stream_of(seed: int, chat: int, turn: int) -> int:
    """Where an answer's stream of numbers begins, 64 bits."""
    return int.from_bytes(hashlib.blake2b(f"{seed}:{chat}:{turn}".encode(), digest_size=8).digest(), "little")


def uniforms(streams: NDArray[np.uint64], places: NDArray[np.uint64]) -> NDArray[np.float64]:
    """For each row its number at a place of its stream, in [0, 1)."""
    with np.errstate(over="ignore"):
        mixed = streams + (places + np.uint64(1)) * _GOLDEN
        mixed = (mixed ^ (mixed >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        mixed = (mixed ^ (mixed >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    numbers: NDArray[np.float64] = ((mixed ^ (mixed >> np.uint64(31))) >> np.uint64(11)).astype(np.float64) * 2.0**-53
    return numbers


def draw(logits: Tensor, numbers: NDArray[np.float64], temperature: float, top_p: float) -> Tensor:
    """A token for each row, int64 [rows].

    Args:
        logits: [rows, vocabulary].
        numbers: [rows] in [0, 1).
        temperature: logits are divided by it; above 0.
        top_p: only the likeliest tokens that together have this probability can be drawn, the one that crosses it included.
    """
    likely, tokens = torch.softmax(logits.float() / temperature, -1).sort(-1, descending=True)
    below = likely.cumsum(-1) - likely
    likely = likely.masked_fill(below >= top_p, 0.0).double()
    sums = likely.cumsum(-1)
    wanted = torch.as_tensor(numbers, device=logits.device)[:, None] * sums[:, -1:]
    chosen = torch.searchsorted(sums, wanted, right=True).clamp_(max=logits.shape[-1] - 1)
    return tokens.gather(-1, chosen)[:, 0]
