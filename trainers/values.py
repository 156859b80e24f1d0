"""Language models with value heads: what ILQL and MC returns learn, and what their policies act with.

A value model is a *trunk*, the body of a causal language model without its vocabulary head, and *heads* on its hidden
states (Snell et al., arXiv 2206.11871; LMRL-Gym, arXiv 2311.18232, section 5). Its loss is computed inside `forward`,
so that DDP, FSDP, DeepSpeed, compilation and mixed precision wrap it like any other model's.

The behaviour policy, whose logits the values are added to when acting, is not part of it: the loss does not need it.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from trainers.heads import Head


class HeadSettings(NamedTuple):
    """The form of a value model's heads.

    Attributes:
        linear: One linear layer; else two with a ReLU between them, as wide as the trunk.
        bias: First value of every output. With zero first weights, all values begin there.
        token_ids: The tokens that Q heads have outputs for, sorted; None is the whole vocabulary.
    """

    linear: bool = False
    bias: float = 0.0
    token_ids: Sequence[int] | None = None


def trunk_of(model: Any) -> Any:
    """A copy of a causal language model's body, up to and with its last normalisation.

    Raises:
        ValueError: The model has no body of its own.
    """
    body = getattr(model, "base_model", model)
    if body is model:
        raise ValueError(f"{type(model).__name__} has no body without its vocabulary head, so it can carry no values")
    trunk = copy.deepcopy(body)
    for module in trunk.modules():
        if isinstance(module, nn.Dropout):
            module.p = 0.0  # a value that a target is made of must not be noise
    return trunk


def make_head(trunk: Any, outputs: int, settings: HeadSettings) -> Head:
    """A head on the trunk's hidden states: for each of the vocabulary's tokens, or, with one output, of the state."""
    config = trunk.config.get_text_config()
    token_ids = None if settings.token_ids is None or outputs == 1 else torch.tensor(list(settings.token_ids))
    head = Head(config.hidden_size, outputs, bias=settings.bias, linear=settings.linear, token_ids=token_ids)
    return head.to(device=trunk.device, dtype=trunk.dtype)


class ValueModel(nn.Module):
    """A trunk and its heads; algorithms add what else they learn with, and the loss.

    Args:
        trunk: Body of a causal language model, see `trunk_of`; it becomes part of this model.
        settings: Form of the heads.
        q_heads: Number of Q heads, 1 or 2.
    """

    def __init__(self, trunk: Any, settings: HeadSettings, q_heads: int) -> None:
        super().__init__()
        self.config, self.settings = trunk.config, settings
        self._no_split_modules = trunk._no_split_modules
        self.trunk = trunk
        self.q1 = make_head(trunk, self.vocab_size, settings)
        self.q2 = make_head(trunk, self.vocab_size, settings) if q_heads == 2 else None

    @property
    def vocab_size(self) -> int:
        """Number of tokens that the trunk can read."""
        return int(self.config.get_text_config().vocab_size)

    def hidden(self, trunk: Any, input_ids: Tensor, attention_mask: Tensor) -> Tensor:
        """Hidden states of a trunk, shape (B T, H): rows one after the other."""
        states: Tensor = trunk(input_ids=input_ids, attention_mask=attention_mask, use_cache=False).last_hidden_state
        return states.flatten(0, 1)

    def q_values(self, hidden: Tensor) -> Tensor:
        """min(Q1, Q2) of every token the heads know, from hidden states (N, H); shape (N, V) or (N, K)."""
        values: Tensor = self.q1(hidden)
        return values if self.q2 is None else torch.minimum(values, self.q2(hidden))

    def acting_state(self) -> dict[str, Tensor]:
        """The weights that acting needs: trunk and Q heads."""
        kept = ("trunk.", "q1.", "q2.")
        return {name: tensor for name, tensor in self.state_dict().items() if name.startswith(kept)}

    def activation_checkpointing_enable(self, **options: Any) -> None:
        """Recompute the trunk's activations in the backward pass; as `PreTrainedModel` has it."""
        self.trunk.activation_checkpointing_enable(**options)

    def moving_pairs(self) -> Iterator[tuple[nn.Module, nn.Module]]:
        """Each module and its slowly moving copy; none here."""
        yield from ()

    @torch.no_grad()
    def move_targets(self, rate: float) -> None:
        """target <- target + rate (module - target), for all copies."""
        for module, target in self.moving_pairs():
            for own, moved in zip(module.parameters(), target.parameters(), strict=True):
                moved.lerp_(own.to(moved.dtype), rate)


def frozen_copy(module: Any) -> Any:
    """A copy that takes no gradient."""
    copied = copy.deepcopy(module)
    for parameter in copied.parameters():
        parameter.requires_grad_(False)
    return copied
