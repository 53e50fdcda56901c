"""What came of the rows of a chunk, counted while they go by."""

from __future__ import annotations

from collections import Counter

from dflash.data.conversation import Conversation, Row
from dflash.data.encode import EncodedRow, RowEncoder
from dflash.data.losses import CUT, Loss, of_rejected
from dflash.data.manifest import Counts


class Tally:
    """Counts of kept and rejected rows; the encoder counts the tokens of what is dropped."""

    def __init__(self, encoder: RowEncoder) -> None:
        self._encoder = encoder
        self._rows = self._turns = self._tokens = self._loss_tokens = self._truncated = 0
        self._max_token_id = -1
        self._reasons: Counter[str] = Counter()
        self._losses: dict[str, Loss] = {}

    def kept(self, row: Row, encoded: EncodedRow) -> None:
        """A row is kept, perhaps changed or cut."""
        self._rows += 1
        self._turns += len(row.messages) if isinstance(row, Conversation) else 1
        self._tokens += len(encoded.tokens)
        self._loss_tokens += int(encoded.loss_mask.sum())
        self._max_token_id = max(self._max_token_id, int(encoded.tokens.max()))
        changed = set[str]()
        for kind, turns, text in self._encoder.changes(row):
            self._lose(kind, Loss(changed=int(kind not in changed), turns=turns, tokens=self._encoder.count_tokens(text)))
            changed.add(kind)
        if encoded.cut:
            self._truncated += 1
            self._lose(CUT, Loss(changed=1, tokens=encoded.cut))

    def rejected(self, raw: object, kind: str) -> None:
        """A row is rejected for the reason `kind`."""
        self._reasons[kind] += 1
        turns, texts, ids = of_rejected(raw)
        self._lose(kind, Loss(rows=1, turns=turns, tokens=ids + sum(map(self._encoder.count_tokens, texts))))

    def counts(self) -> Counts:
        """All that was counted."""
        return Counts(
            rows_read=self._rows + self._reasons.total(),
            kept=self._rows,
            rejected=self._reasons.total(),
            truncated=self._truncated,
            tokens=self._tokens,
            loss_tokens=self._loss_tokens,
            max_token_id=self._max_token_id,
            turns=self._turns,
            turns_dropped=sum(loss.turns for loss in self._losses.values()),
            tokens_dropped=sum(loss.tokens for loss in self._losses.values()),
            reasons=dict(sorted(self._reasons.items())),
            losses=dict(sorted(self._losses.items())),
        )

    def _lose(self, kind: str, loss: Loss) -> None:
        self._losses[kind] = self._losses.get(kind, Loss()) + loss
