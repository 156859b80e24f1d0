"""One step of GPT-2 for acting: the same numbers as transformers' forward, with less around them.

For models as small as those trained here from nothing, half of a step's time goes into what a general library does
around its few products. Acting also needs the logits of the last place alone, so in the last layer only keys and values
are computed for the others: with two layers, that is nearly half of the work for a prompt.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from transformers import GPT2LMHeadModel
from transformers.pytorch_utils import Conv1D

# What makes a forward pass another one than this, and what it is otherwise.
PLAIN_SETTINGS = {
    "scale_attn_weights": True,
    "scale_attn_by_inverse_layer_idx": False,
    "reorder_and_upcast_attn": False,
    "add_cross_attention": False,
}


def is_plain(model: Any) -> bool:
    """Whether a model is a GPT-2 in evaluation, whose modules nobody has replaced, wrapped or hooked."""
    if type(model) is not GPT2LMHeadModel or model.training:
        return False
    if any(getattr(model.config, name) != usual for name, usual in PLAIN_SETTINGS.items()):
        return False
    for module in model.modules():
        if "forward" in vars(module) or module._forward_hooks or module._forward_pre_hooks:
            return False
    blocks: Any = model.transformer.h
    layers = [layer for h in blocks for layer in (h.attn.c_attn, h.attn.c_proj, h.mlp.c_fc, h.mlp.c_proj)]
    return all(type(layer) is Conv1D for layer in layers) and type(model.lm_head) is torch.nn.Linear


def last_logits(model: Any, ids: Tensor, mask: Tensor, positions: Tensor, cache: Any) -> Tensor:
    """Logits of the last place, shape (B, V), and the cache filled up.

    Args:
        model: One that `is_plain`.
        ids: Shape (B, T), padded on the left.
        mask: 1 where there is a token, past or new, shape (B, past and T).
        positions: Shape (B, T).
        cache: As in transformers.
    """
    body, heads = model.transformer, model.config.n_head
    (rows, new), columns = ids.shape, mask.size(1)
    states = body.wte(ids) + body.wpe(positions)
    seen: Tensor | None = None
    if not bool(mask.all()):
        seen = mask[:, None, None].bool()
    causal = new > 1
    if causal and (seen is not None or columns > new):
        earlier = torch.ones(new, columns, dtype=torch.bool, device=ids.device).tril(columns - new)
        seen, causal = earlier if seen is None else earlier & seen, False
    for number, block in enumerate(body.h):
        normal = _norm(block.ln_1, states)
        query, key, value = _linear(block.attn.c_attn, normal).chunk(3, dim=2)
        key, value = (part.view(rows, new, heads, -1).transpose(1, 2) for part in (key, value))
        key, value = cache.update(key, value, number)
        if number + 1 == len(body.h) and new > 1:
            states, query, causal = states[:, -1:], query[:, -1:], False
            seen = None if seen is None else seen[..., -1:, :]
        query = query.reshape(rows, states.size(1), heads, -1).transpose(1, 2)
        heard = F.scaled_dot_product_attention(query, key, value, attn_mask=seen, is_causal=causal)
        states = states + _linear(block.attn.c_proj, heard.transpose(1, 2).reshape(states.shape))
        inner = block.mlp.act(_linear(block.mlp.c_fc, _norm(block.ln_2, states)))
        states = states + _linear(block.mlp.c_proj, inner)
    logits: Tensor = model.lm_head(_norm(body.ln_f, states[:, -1]))
    return logits


def _norm(layer: Any, states: Tensor) -> Tensor:
    return F.layer_norm(states, layer.normalized_shape, layer.weight, layer.bias, layer.eps)


def _linear(layer: Any, states: Tensor) -> Tensor:
    return torch.addmm(layer.bias, states.reshape(-1, states.size(-1)), layer.weight).view(*states.shape[:-1], -1)
