"""`ValuePolicy`: a behaviour policy whose words are weighed by learned values (ILQL, MC returns).

The next token is drawn from softmax(logits of the behaviour policy + beta * min(Q1, Q2)), token by token, with a
cache for each of the two models (LMRL-Gym, arXiv 2311.18232, section 5; subtracting V, as Snell et al. write, changes
nothing, since it is the same for all tokens of a state).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import Tensor

from env_servers.task import TaskSpec
from trainers.adapters import VALUE, activate, active
from trainers.generation import Row, Written
from trainers.policy import LanguageModelPolicy
from trainers.values import ValueModel

# What a token that the Q heads do not know is worth: as much as the worst that they know, and this many logits less.
MARGIN = 10.0


class ValuePolicy(LanguageModelPolicy):
    """A causal language model and a value model, as `env_servers.policy.Policy`.

    Args:
        model: The behaviour policy, a causal language model on its device.
        tokenizer: Its tokenizer.
        spec: The task's constants.
        values: Trunk and Q heads, on the same device. A trunk with adapters is the behaviour policy's own body; the
            adapters are then off, but for the values.
        beta: Weight of the values; 0 is the behaviour policy.
        options: As in `LanguageModelPolicy`.

    Raises:
        ValueError: `beta` is negative, or as in `LanguageModelPolicy`.
    """

    def __init__(
        self, model: Any, tokenizer: Any, spec: TaskSpec, *, values: ValueModel, beta: float, **options: Any
    ) -> None:
        super().__init__(model, tokenizer, spec, **options)
        if not beta >= 0:
            raise ValueError(f"beta is {beta}; allowed are 0 (the behaviour policy) and up")
        self.values, self.beta = values.eval(), beta
        activate(values.trunk, None)
        self._writer = self._make_writer([model, self.values.trunk] if beta else [model])

    def _generate_otherwise(self, rows: Sequence[Row]) -> list[Written]:
        return self._writer.write(rows)

    def _logits(self, ids: Tensor, mask: Tensor, positions: Tensor, keep: int, caches: tuple[Any, ...] = ()) -> Tensor:
        """As in `LanguageModelPolicy`; float32 with values."""
        logits = super()._logits(ids, mask, positions, keep, caches[:1])
        if self.beta == 0:
            return logits
        shared = {"input_ids": ids, "attention_mask": mask, "position_ids": positions, "use_cache": bool(caches)}
        own = dict(zip(self._caches[1:], caches[1:], strict=True)) if caches else {}
        with active(self.values.trunk, VALUE):
            hidden = self.values.trunk(**shared, **own).last_hidden_state[:, -keep:]
        return logits.float() + self.weighed(self.values.q_values(hidden).float())

    def weighed(self, q_values: Tensor) -> Tensor:
        """What is added to the logits, shape (..., V), from the values of the tokens that the heads know, (..., K)."""
        values = self.beta * q_values
        if self.values.settings.token_ids is None:
            return values
        worst = values.min(dim=-1, keepdim=True).values - MARGIN
        assert self.values.q1.token_ids is not None, "the heads know what the settings say"
        everywhere = worst.repeat(*[1] * (values.ndim - 1), self.values.vocab_size)
        return everywhere.index_copy(-1, self.values.q1.token_ids, values)
