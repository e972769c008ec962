"""Rank-AE's network with a bidirectional LSTM in front of the channel attention (figure 5)."""

from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

from longtail.models.rank_ae.network import RankAENetwork, attend
from longtail.models.rank_ae.sequence import LSTM, BiLSTM
from longtail.text.tokens import TokenRows
from longtail.training.draws import uniform
from longtail.training.layers import EVERY, take_rows

if TYPE_CHECKING:
    from longtail.models.rank_ae.model import RankAE


class SequenceNetwork(RankAENetwork):
    """Words in their order: V' are the states of an LSTM, C/2 of either direction."""

    def __init__(self, model: "RankAE", n_words: int, n_labels: int, word_dim: int) -> None:
        half = -(-word_dim // 2)
        super().__init__(model, n_words, n_labels, 2 * half, word_dim=word_dim)
        self.lstm = nn.LSTM(word_dim, half, batch_first=True, bidirectional=True)

    def gather(
        self, rows: TokenRows, chosen: NDArray[np.int64], mine: slice = EVERY
    ) -> dict[str, Tensor]:
        """Return those of the documents `chosen` that are `mine`, as `embed_batch` reads them."""
        ids, lengths = (array[mine] for array in rows.pad(chosen))
        touched, places = np.unique(ids, return_inverse=True)
        batch = (touched.astype(np.int64), places.reshape(ids.shape), lengths.astype(np.int64))
        names = ("touched", "places", "lengths")
        return {name: torch.from_numpy(array) for name, array in zip(names, batch, strict=True)}

    def embed_batch(self, batch: dict[str, Tensor]) -> Tensor:
        """F: return x_h (B, h); training drops words."""
        places, lengths = batch["places"], batch["lengths"]
        e = take_rows(self.words, batch["touched"]).float()
        words = e.index_select(0, places.flatten()).view(*places.shape, -1)  # (B, T, word_dim)
        if self.training and self.model.keep < 1:
            kept = uniform(places.shape, places.device) < self.model.keep
            words = words * (kept / self.model.keep)[..., None]
        with torch.autocast(words.device.type, enabled=False):  # recurrence adds errors up
            states = self._read(words, lengths)  # V' (B, T, C)
        M = states
        if self.model.attention:
            M = states * torch.sigmoid(attend(states, self.squeeze, self.excite)).float()
        ended = torch.arange(M.shape[1], device=M.device) >= lengths[:, None]
        return self.finish(M.masked_fill(ended[..., None], 0).sum(1), lengths)

    def _read(self, words: Tensor, lengths: Tensor) -> Tensor:
        """Return the states; a document without words is read as one with some word."""
        packed: Any = pack_padded_sequence(
            words, lengths.clamp_min(1).cpu(), batch_first=True, enforce_sorted=False
        )
        states, _ = pad_packed_sequence(
            self.lstm(packed)[0], batch_first=True, total_length=words.shape[1]
        )
        return states

    def export_bilstm(self) -> BiLSTM:
        """Return the LSTM for prediction."""
        return BiLSTM(*(self._export_direction(ending) for ending in ("", "_reverse")))

    def _export_direction(self, ending: str) -> LSTM:
        from_words, from_state, bias, more = (
            getattr(self.lstm, f"{name}_l0{ending}").detach()
            for name in ("weight_ih", "weight_hh", "bias_ih", "bias_hh")
        )
        layers = (from_words.T, from_state.T, bias + more)
        return LSTM(*(layer.contiguous().numpy() for layer in layers))
