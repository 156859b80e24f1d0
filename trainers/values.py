"""Language models with value heads: what ILQL and MC returns learn, and what their policies act with.

A value model is a *trunk*, the body of a causal language model without its vocabulary head, and *heads* on its hidden
states (Snell et al., arXiv 2206.11871; LMRL-Gym, arXiv 2311.18232, section 5). Its loss is computed inside `forward`,
so that DDP, FSDP, DeepSpeed, compilation and mixed precision wrap it like any other model's.

The behaviour policy, whose logits the values are added to when acting, is not part of it: the loss does not need it.
With adapters (`lora_trunk`) the trunk is its body all the same, and its weights are in memory once.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from trainers.adapters import VALUE, LoraSettings, add_adapters, has_adapters, is_of_adapter
from trainers.heads import Head
from trainers.sharding import move_towards, whole


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
    return without_dropout(copy.deepcopy(_body_of(model)))


def lora_trunk(model: Any, settings: LoraSettings) -> Any:
    """A causal language model's body itself, with an adapter instead of a copy, see `trainers.adapters`.

    The model shares it: turn the adapters off (`activate`, `active`) to have the model as it was.

    Raises:
        ValueError: The model has no body of its own, has adapters already, or has no such layers.
    """
    trunk = without_dropout(_body_of(model))
    add_adapters(trunk, settings)
    return trunk


def _body_of(model: Any) -> Any:
    body = getattr(model, "base_model", model)
    if body is model:
        raise ValueError(f"{type(model).__name__} has no body without its vocabulary head, so it can carry no values")
    return body


def without_dropout(trunk: Any) -> Any:
    """The trunk with all dropout at 0: a value that a target is made of must not be noise."""
    for module in trunk.modules():
        if isinstance(module, nn.Dropout):
            module.p = 0.0
        if isinstance(getattr(module, "attention_dropout", None), float):
            module.attention_dropout = 0.0
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
        trunk: Body of a causal language model, see `trunk_of` and `lora_trunk`; it becomes part of this model.
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

    def acting_state(self, keep: bool = True) -> dict[str, Tensor]:
        """The weights that acting needs: Q heads, and the trunk, or of one with adapters the adapter alone.

        All processes must call it where the weights are in parts.

        Args:
            keep: Whether this process wants them, see `trainers.sharding.whole`.
        """
        state = self.state_dict(keep_vars=True)
        return whole({name: tensor for name, tensor in state.items() if self._acts(name)}, keep)

    def load_acting_state(self, state: Mapping[str, Tensor]) -> None:
        """Take over what `acting_state` gave.

        Raises:
            RuntimeError: Names or shapes are not this model's.
        """
        missing, unexpected = self.load_state_dict(state, strict=False)
        missing = [name for name in missing if self._acts(name)]
        if missing or unexpected:
            raise RuntimeError(f"{len(missing)} weights are missing, {len(unexpected)} unknown: "
                               f"{', '.join([*missing, *unexpected][:5])}")  # fmt: skip

    def _acts(self, name: str) -> bool:
        if name.startswith("trunk."):
            return not has_adapters(self.trunk) or is_of_adapter(name, VALUE)
        return name.startswith(("q1.", "q2."))

    def activation_checkpointing_enable(self, **options: Any) -> None:
        """Recompute the trunk's activations in the backward pass; as `PreTrainedModel` has it."""
        self.trunk.activation_checkpointing_enable(**options)

    def moving_pairs(self) -> Iterator[tuple[nn.Module, nn.Module]]:
        """Each module and its slowly moving copy; none here."""
        yield from ()

    def move_targets(self, rate: float, seed: int = 0) -> None:
        """target <- target + rate (module - target), for all copies; `seed` as in `trainers.sharding.move_towards`."""
        for module, target in self.moving_pairs():
            for own, moved in zip(module.parameters(), target.parameters(), strict=True):
                move_towards(moved, own, rate, seed)


def frozen_copy(module: Any) -> Any:
    """A copy that takes no gradient."""
    copied = copy.deepcopy(module)
    for parameter in copied.parameters():
        parameter.requires_grad_(False)
    return copied
