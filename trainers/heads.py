"""Value heads: from the hidden state before a token to the values of tokens, or of the state.

LMRL-Gym, arXiv 2311.18232, puts such heads on the last hidden state of a language model (after its final layer norm):
two for Q and one for V in ILQL, one for Q in MC returns. This one is all of them: two layers, or one, with the last
layer's weights at 0, so that at first every value is the bias.
"""

from __future__ import annotations

from typing import cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from trainers.fused import taken, weighted_logsumexp

# Standard deviation of a standard normal variable that is cut off at plus and minus 2.
CUT_OFF_STD = 0.87962566103423978


class Head(nn.Module):
    """A layer with ReLU, `dense`, then a layer of values, `output`.

    `head(states)` gives all values, `head(states, tokens)` those of the tokens that were taken, and
    `head(states, tokens, weights)` these with the conservative term, without ever holding the values of all tokens.
    `taken` and `taken_and_cql` are the same calls by name. All of it happens inside `forward`, so that hooks, and
    sharding (FSDP2 on this module as a whole), find the parameters used where they expect it.

    With `token_ids`, the head has values for these tokens alone, say those that the agent says anywhere in the data:
    K values instead of V. `tokens` are given in the whole vocabulary's numbers all the same. The conservative term is
    then over K tokens, which is another objective than over V.

    Args:
        width: Size of the hidden states, H.
        size: Number of values: V tokens of a vocabulary for Q, 1 for V.
        hidden: Size of the layer between; None is `width`.
        bias: First value of the last layer's biases, so of all values.
        linear: No layer between, as LMRL-Gym's MC heads for the dialogue tasks, Wordle and Text-Nav.
        token_ids: Sorted distinct token ids, shape (K,); None is all.
        generator: For the first weights of the layer between; None is torch's global one.

    Raises:
        ValueError: `hidden` for a head without that layer, or `token_ids` that are not sorted, distinct and in range.
    """

    token_ids: Tensor | None
    index_of: Tensor | None

    def __init__(
        self,
        width: int,
        size: int,
        *,
        hidden: int | None = None,
        bias: float = 0.0,
        linear: bool = False,
        token_ids: Tensor | None = None,
        generator: torch.Generator | None = None,
    ) -> None:
        super().__init__()
        if linear and hidden is not None:
            raise ValueError(f"hidden is {hidden}, but a linear head has no hidden layer; leave one of them out")
        self.size = size
        self.first_bias = bias
        hidden = width if hidden is None else hidden
        self.dense = None if linear else _Linear(width, hidden)
        self.output = _Linear(hidden, size if token_ids is None else len(token_ids))
        index_of = None
        if token_ids is not None:
            _check_ids(token_ids, size)
            token_ids = token_ids.long().clone()
            index_of = token_ids.new_full((size,), -1)
            index_of[token_ids] = torch.arange(len(token_ids), device=token_ids.device)
        # Saved with the weights, which mean nothing without them.
        self.register_buffer("token_ids", token_ids)
        self.register_buffer("index_of", index_of)
        self.reset_parameters(generator)

    def reset_parameters(self, generator: torch.Generator | None = None) -> None:
        """Draw the first weights: LeCun's normal (cut off, variance 1 / fan-in) and 0 in the layer between."""
        if self.dense is not None:
            std = self.dense.in_features**-0.5 / CUT_OFF_STD
            nn.init.trunc_normal_(self.dense.weight, std=std, a=-2 * std, b=2 * std, generator=generator)
            nn.init.zeros_(self.dense.bias)
        nn.init.zeros_(self.output.weight)
        nn.init.constant_(self.output.bias, self.first_bias)

    def forward(
        self, states: Tensor, tokens: Tensor | None = None, weights: Tensor | None = None
    ) -> Tensor | tuple[Tensor, Tensor]:
        """See the class; `taken` and `taken_and_cql` have the shapes of the calls with `tokens`.

        Args:
            states: Hidden states, shape (N, H); without `tokens` any (..., H).
            tokens: Ids of the tokens taken, shape (N,).
            weights: How often each counts, shape (N,).

        Returns:
            All values, shape (N, V) (K where there are `token_ids`, see `spread`); or what the method says.
        """
        hidden = states if self.dense is None else F.relu(self.dense(states))
        if tokens is None:
            if weights is not None:
                raise ValueError("weights are given without tokens; they weigh the tokens that were taken")
            return cast(Tensor, self.output(hidden))
        places = tokens if self.index_of is None else self.index_of[tokens]
        values = taken(hidden, self.output.weight, self.output.bias, places)
        if weights is None:
            return values
        weights = weights.detach()
        over_all = weighted_logsumexp(hidden, self.output.weight, self.output.bias, weights)
        return values, over_all - (weights * values).sum()

    def taken(self, states: Tensor, tokens: Tensor) -> Tensor:
        """Values of the tokens taken.

        Args:
            states: Hidden states before the tokens, shape (N, H).
            tokens: Their ids, shape (N,). With `token_ids` they must be among these, which is not checked here, as
                it would hold up a GPU: make sure with `check_tokens` when the data is read.

        Returns:
            Shape (N,), float32.
        """
        return cast(Tensor, self(states, tokens))

    def taken_and_cql(self, states: Tensor, tokens: Tensor, weights: Tensor) -> tuple[Tensor, Tensor]:
        """Values of the tokens taken and the conservative term, sum_n weights_n (logsumexp_v Q_n(v) - Q_n(token_n)).

        Args:
            states: Hidden states before the tokens, shape (N, H).
            tokens: Their ids, shape (N,), as for `taken`.
            weights: How often each token counts, shape (N,); no gradient.

        Returns:
            Shape (N,), and a scalar, both float32. No matrix of N x V is made, see `trainers.fused`.
        """
        return cast(tuple[Tensor, Tensor], self(states, tokens, weights))

    def spread(self, values: Tensor, fill: float) -> Tensor:
        """Values by place in `token_ids` as values by token id; as they are where the head has all tokens.

        Args:
            values: Shape (..., K).
            fill: For the tokens that the head does not know.

        Returns:
            Shape (..., V).
        """
        if self.token_ids is None:
            return values
        whole = values.new_full((*values.shape[:-1], self.size), fill)
        return whole.index_copy(-1, self.token_ids, values)

    def check_tokens(self, tokens: Tensor) -> None:
        """Raise a ValueError if the head has no value for one of the tokens (any shape)."""
        outside = (tokens < 0) | (tokens >= self.size)
        if self.index_of is not None:
            outside |= self.index_of[tokens.clamp(0, self.size - 1)] < 0
        if outside.any():
            found = sorted(set(tokens[outside].tolist()))
            known = f"ids below {self.size}" if self.token_ids is None else f"{len(self.token_ids)} ids of {self.size}"
            raise ValueError(
                f"the head has no values for {len(found)} tokens, such as {', '.join(map(str, found[:5]))}; it has "
                f"{known}: make it for the tokens of all data that it meets"
            )


class _Linear(nn.Linear):
    """Without first weights of its own, which would be drawn from the global generator; `Head` sets them."""

    def reset_parameters(self) -> None:
        pass


def _check_ids(token_ids: Tensor, size: int) -> None:
    if token_ids.is_meta:  # the weights, and these with them, are to be loaded
        return
    if token_ids.ndim != 1 or not len(token_ids):
        raise ValueError(f"token_ids have shape {tuple(token_ids.shape)}; give at least one, as (K,)")
    if token_ids[0] < 0 or token_ids[-1] >= size or (token_ids.diff() <= 0).any():
        raise ValueError(
            f"token_ids must rise from 0 or above to at most {size - 1}, each once; sort them and drop twins"
        )
