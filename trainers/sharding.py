"""Weights that several processes hold in parts: DTensors of FSDP2, and what DeepSpeed's ZeRO-3 partitions.

Inside `forward` their owners put them together. Outside of it there are two uses: to save them, and to move one towards
another. And both owners would round numbers that are no activations.
"""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor
from torch.distributed.fsdp import MixedPrecisionPolicy
from torch.distributed.tensor import DTensor


def whole(tensors: Mapping[str, Tensor], keep: bool = True) -> dict[str, Tensor]:
    """The tensors in full: those in parts gathered, on the CPU, the others as they are, without gradient.

    All processes must call it, with the same names in the same order.

    Args:
        tensors: Parameters and buffers by name, themselves and not their `detach()`, which ZeRO-3 does not know.
        keep: Whether this process wants them; else it only helps the others, and gets an empty dictionary.
    """
    found, seen = {}, dict[int, Tensor]()
    for name, tensor in tensors.items():
        if id(tensor) not in seen:  # tied weights stay tied
            gathered = _gather(tensor)
            seen[id(tensor)] = gathered if keep else gathered.new_empty(0)
        if keep:
            found[name] = seen[id(tensor)]
    return found


def _gather(tensor: Tensor) -> Tensor:
    if isinstance(tensor, DTensor):
        part: Any = tensor.detach()
        gathered: Tensor = part.full_tensor()
        return gathered.cpu()
    if hasattr(tensor, "ds_id"):
        import deepspeed  # only where its parameters are, it is installed; `zero` is an attribute and no module

        with deepspeed.zero.GatheredParameters([tensor]):
            return tensor.detach().clone().cpu()
    return tensor.detach()


@torch.no_grad()
def move_towards(target: Any, own: Any, rate: float, seed: int = 0) -> None:
    """target <- target + rate (own - target), in place, and each process its own part.

    In bfloat16 the result is rounded up or down at random, right on average: the nearest number is, for the rates in
    use, nearly always the one before, so the target would stay where it is. (DeepSpeed keeps weights so.)

    Args:
        target: A parameter, whole or in parts.
        own: Another of its shape, in parts alike.
        rate: Between 0 and 1.
        seed: Of the rounding; the same in all processes, another in each step.

    Raises:
        ValueError: The target is in float16.
    """
    moved, towards = _part(target), _part(own)
    if moved.dtype == torch.float16:
        raise ValueError("the targets are in float16, too coarse for their steps; keep the weights in bf16 or float32")
    if moved.dtype == torch.bfloat16:
        # A bfloat16 is the upper half of a float32: add noise to the lower half and cut it off.
        bits = moved.float().lerp_(towards.float(), rate).view(torch.int32)
        generator = torch.Generator(bits.device).manual_seed(seed)
        bits += torch.randint(1 << 16, bits.shape, dtype=torch.int32, device=bits.device, generator=generator)
        moved.copy_((bits & -(1 << 16)).view(torch.float32))
    else:
        moved.lerp_(towards.to(moved.dtype), rate)
    if hasattr(target, "ds_tensor"):
        # ZeRO-3 keeps small parameters in full beside their parts; it gathers them anew when they are next used.
        target.partition()


def _part(tensor: Any) -> Tensor:
    """What this process holds of it."""
    part: Tensor = tensor.to_local() if isinstance(tensor, DTensor) else getattr(tensor, "ds_tensor", tensor)
    return part


def sharding_checkpoints() -> bool:
    """Whether FSDP's own settings have it recompute activations; it refuses to have that done twice."""
    return os.environ.get("FSDP_ACTIVATION_CHECKPOINTING", "false").lower() == "true"


def keep_inputs_exact(fsdp_plugin: Any) -> None:
    """Have FSDP2's mixed precision leave a model's inputs and its loss in float32.

    Else it rounds rewards, returns and discounts to bfloat16, in which 0.99 is 0.988. (DDP's autocast leaves them.)

    Args:
        fsdp_plugin: Of accelerate; None, and one without mixed precision, is left as it is.
    """
    policy = getattr(fsdp_plugin, "mixed_precision_policy", None)
    if isinstance(policy, MixedPrecisionPolicy):
        fsdp_plugin.mixed_precision_policy = dataclasses.replace(policy, cast_forward_inputs=False, output_dtype=None)
