"""Monte Carlo returns: Q of the behaviour policy, regressed on what came after each of the agent's tokens.

LMRL-Gym (arXiv 2311.18232, section 5): with the discounted sum R of the rewards from a token to the end of its episode,

    L = 1/2 (Q(s, a) - R)^2 + c (log sum_b exp Q(s, b) - Q(s, a)),

a mean over tokens. There is no bootstrapping: what was cut from an episode counts as nothing.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from trainers.losses import mc_loss
from trainers.values import HeadSettings, ValueModel


class MCModel(ValueModel):
    """Trunk with one Q head.

    Args:
        trunk: Body of a causal language model, see `values.trunk_of` and `values.lora_trunk`.
        settings: Form of the head.
        cql_weight: Weight of the conservative term.
    """

    def __init__(self, trunk: Any, settings: HeadSettings, *, cql_weight: float = 0.01) -> None:
        super().__init__(trunk, settings, q_heads=1)
        self.cql_weight = cql_weight

    def forward(
        self,
        input_ids: Tensor,
        attention_mask: Tensor,
        states: Tensor,
        tokens: Tensor,
        returns: Tensor,
        weights: Tensor,
        count: Tensor | None = None,
        **unused: Tensor,
    ) -> dict[str, Tensor]:
        """The loss of a batch from `trainers.transitions.transition_collator`, whose documentation has the shapes; and
        the number of its action `tokens`, weights included, with sums over them of what is worth logging.

        Args:
            count: Number of action tokens, weights included, in all batches of the optimiser's step; None takes this
                batch's.
            unused: What only bootstrapping needs.
        """
        at = self.hidden(self.trunk, input_ids, attention_mask)[states]
        q, cql = self.q1(at, tokens, weights)
        here = weights.sum()
        divisor = here if count is None else count
        loss = mc_loss(q=q, returns=returns, cql=cql, cql_weight=self.cql_weight, count=divisor, weights=weights)
        with torch.no_grad():
            sums = {"values/q": (q.float() * weights).sum(), "values/returns": (returns.float() * weights).sum()}
            sums |= {"losses/q": loss.q * divisor, "losses/cql": loss.cql * divisor}
        return {"loss": loss.total, "tokens": here, **sums}
