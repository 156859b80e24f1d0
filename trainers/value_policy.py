"""`ValuePolicy`: a behaviour policy whose words are weighed by learned values (ILQL, MC returns).

The next token is drawn from softmax(logits of the behaviour policy + beta * min(Q1, Q2)), token by token, with a
cache for each of the two models (LMRL-Gym, arXiv 2311.18232, section 5; subtracting V, as Snell et al. write, changes
nothing, since it is the same for all tokens of a state).
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor
from transformers import DynamicCache

from env_servers.policy import Action
from env_servers.task import TaskSpec
from trainers.adapters import VALUE, activate, active
from trainers.policy import LanguageModelPolicy, draw, sampling_logprobs
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
        # transformers renamed it.
        self._cache = "cache" if "cache" in inspect.signature(model.forward).parameters else "past_key_values"

    def _generate(self, prompts: Sequence[list[int]], uniforms: Sequence[list[float]]) -> Iterator[Action]:
        ids, mask, positions = self._padded(prompts)
        device = ids.device
        numbers = torch.tensor(uniforms, dtype=torch.float64, device=device)
        stops = torch.tensor(sorted(self.stop_ids), device=device)
        caches = DynamicCache(), DynamicCache()
        ended = torch.zeros(len(prompts), dtype=torch.bool, device=device)
        chosen, logprobs = list[Tensor](), list[Tensor]()
        with torch.inference_mode():
            for step in range(self.max_new_tokens):
                logits = self._logits(ids, mask, positions, 1, caches)[:, -1]
                rows = sampling_logprobs(logits, self.sampling)
                tokens = draw(rows, numbers[:, step]).masked_fill(ended, self._pad_id)
                logprobs.append(rows.gather(1, tokens[:, None])[:, 0])
                chosen.append(tokens)
                ended |= torch.isin(tokens, stops)
                if bool(ended.all()):
                    break
                ids, positions = tokens[:, None], positions[:, -1:] + 1
                mask = torch.cat([mask, mask.new_ones(len(prompts), 1)], dim=1)
        new, scores = torch.stack(chosen, 1).tolist(), torch.stack(logprobs, 1).tolist()
        for prompt, row, row_scores in zip(prompts, new, scores, strict=True):
            yield self._action(prompt, row, row_scores)

    def _logits(
        self, ids: Tensor, mask: Tensor, positions: Tensor, keep: int, caches: tuple[Any, Any] | None = None
    ) -> Tensor:
        """As in `LanguageModelPolicy`, from new tokens (B, T) and what the caches hold; float32 with values."""
        shared = {"input_ids": ids, "attention_mask": mask, "position_ids": positions, "use_cache": caches is not None}
        first, second = ({self._cache: cache} for cache in caches or (None, None))
        logits: Tensor = self.model(**shared, **first, **self._last(keep)).logits[:, -keep:]
        if self.beta == 0:
            return logits
        with active(self.values.trunk, VALUE):
            hidden = self.values.trunk(**shared, **second).last_hidden_state[:, -keep:]
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
