"""A language model that learns from what it says itself, with a value head, and the reference that it is held to.

The value head stands on the same trunk, so a state's value costs no second model, and its loss reaches the trunk
(LMRL-Gym, arXiv 2311.18232, section 5). The reference is the model as it was at first: a frozen copy, or, of a
model with adapters (`trainers.adapters`), the model itself with these off. Everything is computed inside `forward`,
a round's old log-probabilities as well as the losses, so that DDP, FSDP and DeepSpeed wrap it like any other model.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Mapping
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from trainers.adapters import LoraSettings, active, state_without_adapters
from trainers.ppo_losses import ppo_loss
from trainers.tokens import IGNORED
from trainers.values import HeadSettings, frozen_copy, lora_trunk, make_head, without_dropout


class LossSettings(NamedTuple):
    """The constants of the loss.

    Attributes:
        cliprange: How far the ratio of probabilities may go from 1.
        cliprange_value: How far a value may go from the old one, in scaled rewards; 0 is any distance.
        vf_coef: Weight of the value loss.
        bc_coef: Weight of the cross entropy of offline episodes, where there are any.
    """

    cliprange: float = 0.2
    cliprange_value: float = 0.2
    vf_coef: float = 0.5
    bc_coef: float = 0.0


class ActorCritic(nn.Module):
    """Policy, value head and reference.

    Dropout is off for good: a ratio of probabilities must not be noise.

    Args:
        model: A causal language model; it becomes part of this one.
        settings: Form of the value head.
        losses: Constants of the loss.
        temperature: That the policy samples at: its log-probabilities are those of logits / temperature.
        lora: Learn adapters of this form and the value head; None learns all weights.
        ref_model: The reference; None is the model as it is given.
        with_reference: Without one its log-probabilities are told as the policy's own.
    """

    def __init__(
        self,
        model: Any,
        settings: HeadSettings,
        losses: LossSettings,
        *,
        temperature: float = 1.0,
        lora: LoraSettings | None = None,
        ref_model: Any = None,
        with_reference: bool = True,
    ) -> None:
        super().__init__()
        self.model, self.config, self.losses, self.temperature = model, model.config, losses, temperature
        self._no_split_modules = model._no_split_modules
        self._keeps_columns = "logits_to_keep" in inspect.signature(model.forward).parameters
        if lora is None:
            without_dropout(model)
        else:
            for parameter in model.parameters():
                parameter.requires_grad_(False)
            lora_trunk(model, lora)
        self.with_reference = with_reference
        self.reference: Any = None
        if with_reference and (lora is None or ref_model is not None):
            self.reference = frozen_copy(model) if ref_model is None else frozen_copy(without_dropout(ref_model))
        self.v = make_head(self.trunk, 1, settings)

    @property
    def trunk(self) -> Any:
        """The policy's body, up to and with its last normalisation."""
        return self.model.base_model

    def forward(
        self,
        input_ids: Tensor,
        attention_mask: Tensor,
        rows: Tensor,
        places: Tensor,
        columns: Tensor,
        column_of: Tensor,
        tokens: Tensor,
        weights: Tensor | None = None,
        old_logprobs: Tensor | None = None,
        old_values: Tensor | None = None,
        advantages: Tensor | None = None,
        returns: Tensor | None = None,
        count: Tensor | int | None = None,
        bc: Mapping[str, Tensor] | None = None,
    ) -> dict[str, Tensor]:
        """The loss of a batch of action tokens; or, without `old_logprobs`, what policy and reference make of it.

        Args:
            input_ids: Token ids, shape (B, T), padded on the right.
            attention_mask: Shape (B, T).
            rows: Of each of N action tokens the row, shape (N,).
            places: And the place before it in the row, shape (N,).
            columns: The distinct `places`, rising, shape (K,).
            column_of: Where in `columns` each of `places` is, shape (N,).
            tokens: Ids of the tokens, shape (N,).
            weights: How often each counts, shape (N,).
            old_logprobs: As in `ppo_losses.ppo_loss`, as are the other three; shape (N,).
            old_values: See there.
            advantages: See there.
            returns: See there.
            count: Number of action tokens, weights included, in all batches of the step; None is this one's.
            bc: Offline rows: `input_ids`, `attention_mask`, `labels`, each (B', T'), and their `count`, a scalar.

        Returns:
            `loss`, number of `tokens`, and sums over them of what is worth logging. Or, without gradient and each of
            shape (N,): `logprobs`, `ref_logprobs`, `values`, `entropies` in nats.
        """
        at = (input_ids, attention_mask, rows, places, columns, column_of)
        if old_logprobs is None:
            with torch.no_grad():
                return self._score(at, tokens)
        assert old_values is not None and advantages is not None and returns is not None and weights is not None
        logits, hidden = self._read(self.model, *at)
        logprobs = -F.cross_entropy(logits, tokens, reduction="none")
        values = self.v(hidden).squeeze(-1)
        here = weights.sum()
        divisor = here if count is None else torch.as_tensor(count, device=here.device)
        settings = self.losses
        loss = ppo_loss(
            logprobs, old_logprobs, values, old_values, advantages, returns, cliprange=settings.cliprange,
            cliprange_value=settings.cliprange_value or math.inf, vf_coef=settings.vf_coef, count=divisor,
            weights=weights,
        )  # fmt: skip
        total = loss.total
        told = {
            "losses/policy": loss.policy,
            "losses/value": loss.value,
            "policy/approx_kl": loss.approx_kl,
            "policy/clipfrac": loss.clipfrac,
            "policy/ratio": loss.ratio,
            "values/clipfrac": loss.value_clipfrac,
        }
        if bc is not None:
            cloning = self._cross_entropy(bc)
            total, told["losses/bc"] = total + settings.bc_coef * cloning, cloning
        sums = {name: value.detach() * divisor for name, value in told.items()}
        sums["values/v"] = (values.detach().float() * weights).sum()
        return {"loss": total, "tokens": here, **sums}

    def _score(self, at: tuple[Tensor, ...], tokens: Tensor) -> dict[str, Tensor]:
        logits, hidden = self._read(self.model, *at)
        each = logits.log_softmax(-1)
        entropies = -(each.exp() * each).sum(-1)
        found = {"logprobs": each.gather(-1, tokens[:, None])[:, 0], "values": self.v(hidden).squeeze(-1).float()}
        found |= {"ref_logprobs": found["logprobs"], "entropies": entropies}
        if self.with_reference:
            if self.reference is not None:
                logits, _ = self._read(self.reference, *at)
            else:
                with active(self.trunk, None):
                    logits, _ = self._read(self.model, *at)
            found["ref_logprobs"] = -F.cross_entropy(logits, tokens, reduction="none")
        return found

    def _read(
        self,
        model: Any,
        input_ids: Tensor,
        attention_mask: Tensor,
        rows: Tensor,
        places: Tensor,
        columns: Tensor,
        column_of: Tensor,
    ) -> tuple[Tensor, Tensor]:
        """Logits over the temperature, (N, V) in float32, and last hidden states, (N, H), at the given places."""
        output = model(
            input_ids=input_ids,
            attention_mask=attention_mask,
            output_hidden_states=True,
            use_cache=False,
            **({"logits_to_keep": columns} if self._keeps_columns else {}),
        )
        logits = output.logits[rows, column_of if self._keeps_columns else places]
        return logits.float() / self.temperature, output.hidden_states[-1][rows, places]

    def _cross_entropy(self, batch: Mapping[str, Tensor]) -> Tensor:
        """Mean cross entropy of the offline rows' targets over all in the gradient step, as in `trainers.bc`."""
        logits = self.model(
            input_ids=batch["input_ids"], attention_mask=batch["attention_mask"], use_cache=False
        ).logits[:, :-1]
        losses = F.cross_entropy(
            logits.transpose(1, 2).float(), batch["labels"][:, 1:], ignore_index=IGNORED, reduction="sum"
        )
        return losses / batch["count"].clamp(min=1)

    def policy_state(self) -> dict[str, Tensor]:
        """The policy's parameters and buffers as a plain language model's, adapters added to the weights they adapt."""
        for layer in getattr(self.trunk, "adapter_layers", ()):
            layer.merge()
        return state_without_adapters(self.model)

    def unsaved_names(self) -> list[str]:
        """Names of the state that a checkpoint need not have: the reference's, and second names of tied weights."""
        seen, names = set[int](), []
        for name, tensor in self.state_dict(keep_vars=True).items():
            if name.startswith("reference.") or id(tensor) in seen:
                names.append(name)
            seen.add(id(tensor))
        return names

    @property
    def _keys_to_ignore_on_save(self) -> list[str]:
        return self.unsaved_names()  # the trainer does not warn of these when it reads a checkpoint

    def tie_weights(self) -> None:
        """The trainer calls it where those were missing; they are the same tensors all the while."""

    def activation_checkpointing_enable(self, **options: Any) -> None:
        """Recompute activations in the backward pass; as `PreTrainedModel` has it."""
        self.model.activation_checkpointing_enable(**options)
