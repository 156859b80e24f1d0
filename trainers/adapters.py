"""LoRA (Hu et al., arXiv 2106.09685) by PEFT, so that a value method needs one model's weights instead of three.

The body of the behaviour policy gets low-rank adapters. It is then, with the same frozen weights,

    the behaviour policy       with all adapters off,
    the value trunk            with the adapter `value`, which learns,
    the target of that trunk   with the adapter `slow`, which follows `value` (ILQL alone has it).

PEFT's own `set_adapter` also makes the adapter that it turns on trainable and freezes the others, each time. Here that
is set once, before DDP or FSDP look at it, and `activate` leaves it alone. At rest a training model has `value` on,
since the backward pass recomputes activations (activation checkpointing) with what is on then.
"""

from __future__ import annotations

import re
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

from torch import Tensor, nn

ALL_LINEAR = "all-linear"
VALUE, SLOW = "value", "slow"


class LoraSettings(NamedTuple):
    """The form of adapters: to a linear layer's W they add alpha / rank B A.

    Attributes:
        rank: Rows of A and columns of B.
        alpha: Scale.
        targets: `all-linear`, or the last names of the linear layers that get one, with commas between.
    """

    rank: int
    alpha: float
    targets: str = ALL_LINEAR


def lora_settings(rank: int | None, alpha: float | None = None, targets: str | None = None) -> LoraSettings | None:
    """Settings from a command line's options.

    Args:
        rank: None or 0 is no adapters: all weights are trained.
        alpha: None is twice the rank.
        targets: None is `all-linear`.

    Raises:
        ValueError: A number is not positive, or there is an option without a rank.
    """
    if not rank and (alpha is not None or targets is not None):
        given = f"lora_alpha is {alpha}" if alpha is not None else f"lora_targets is {targets!r}"
        raise ValueError(f"{given}, but there is no lora_rank, so no adapters; give the rank, such as 16")
    if not rank:
        return None
    settings = LoraSettings(rank, 2.0 * rank if alpha is None else alpha, targets or ALL_LINEAR)
    for name in ("rank", "alpha"):
        if not getattr(settings, name) > 0:
            raise ValueError(f"lora_{name} is {getattr(settings, name)}; it must be above 0")
    return settings


def lora_config(model: Any, settings: LoraSettings, **options: Any) -> Any:
    """PEFT's configuration of such adapters for a model; no dropout, since a target must not be noise.

    Raises:
        ValueError: The model has no linear layer of a name in `targets`.
    """
    from peft import LoraConfig  # seconds, which who has no adapters need not wait for
    from transformers.pytorch_utils import Conv1D

    linear = {name: module for name, module in model.named_modules() if isinstance(module, nn.Linear | Conv1D)}
    targets: str | list[str] = settings.targets
    if settings.targets != ALL_LINEAR:
        targets = [name.strip() for name in settings.targets.split(",")]
        known = sorted({name.rpartition(".")[2] for name in linear})
        if unknown := sorted(set(targets) - set(known)):
            raise ValueError(
                f"lora_targets has {', '.join(unknown)}, which {type(model).__name__} has no linear layers of; "
                f"allowed: {ALL_LINEAR}, or of {', '.join(known)} any, with commas between"
            )
    return LoraConfig(
        r=settings.rank,
        lora_alpha=settings.alpha,  # type: ignore[arg-type]
        target_modules=targets,
        lora_dropout=0.0,
        fan_in_fan_out=any(isinstance(module, Conv1D) for module in linear.values()),
        **options,
    )


def add_adapters(body: Any, settings: LoraSettings) -> None:
    """Give a language model's body the adapter `value`, turned on and at first without effect, and freeze the rest.

    Raises:
        ValueError: It has adapters already, or as in `lora_config`.
    """
    if has_adapters(body):
        raise ValueError(f"{type(body).__name__} has adapters already; load the model anew")
    from peft.tuners.lora import LoraLayer

    _inject(body, lora_config(body, settings), VALUE)
    # Kept, since acting switches them twice for each token, and to search all modules takes as long as some layers.
    body.adapter_layers = [module for module in body.modules() if isinstance(module, LoraLayer)]


def add_slow_adapter(trunk: Any) -> None:
    """Give a trunk with adapters also `slow`, equal to `value`, frozen and off."""
    _inject(trunk, trunk.peft_config[VALUE], SLOW)
    for own, slow in adapter_pairs(trunk):
        slow.load_state_dict(own.state_dict())
    for layer in trunk.adapter_layers:
        layer.set_adapter([VALUE])  # turned on and trainable, and `slow` neither


def has_adapters(trunk: Any) -> bool:
    """Whether a trunk has adapters."""
    return hasattr(trunk, "adapter_layers")


def activate(trunk: Any, name: str | None) -> None:
    """Turn an adapter on and the others off; None turns all off. A trunk without adapters is left as it is."""
    for layer in getattr(trunk, "adapter_layers", ()):
        # Past `nn.Module.__setattr__`, which would look for modules and parameters each time.
        object.__setattr__(layer, "_disable_adapters", name is None)
        if name is not None:
            object.__setattr__(layer, "_active_adapter", [name])


@contextmanager
def active(trunk: Any, name: str | None) -> Iterator[None]:
    """The same within a `with` block; what was on before is on again after it."""
    first = next(iter(getattr(trunk, "adapter_layers", ())), None)
    before = None if first is None or first.disable_adapters else first.active_adapters[0]
    activate(trunk, name)
    try:
        yield
    finally:
        activate(trunk, before)


def adapter_pairs(trunk: Any) -> Iterator[tuple[nn.Module, nn.Module]]:
    """The parts of `value` with those of `slow`."""
    for layer in trunk.adapter_layers:
        for parts in (layer.lora_A, layer.lora_B):
            yield parts[VALUE], parts[SLOW]


def is_of_adapter(name: str, adapter: str = r"\w+") -> bool:
    """Whether a parameter of that name belongs to an adapter, or to that one."""
    return re.search(rf"\.lora_\w+\.{adapter}(\.|$)", name) is not None


def state_without_adapters(model: Any) -> dict[str, Tensor]:
    """The parameters and buffers of a model as if it had never had adapters, by their names then."""
    state = model.state_dict(keep_vars=True)
    return {name.replace(".base_layer.", "."): tensor for name, tensor in state.items() if not is_of_adapter(name)}


def _inject(body: Any, config: Any, name: str) -> None:
    from peft import inject_adapter_in_model

    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Already found a `peft_config`|fan_in_fan_out is set to")
        inject_adapter_in_model(config, body, name)
