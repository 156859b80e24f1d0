"""Scores over a vocabulary without the scores: what the losses of value heads need of a last linear layer.

A layer with H inputs and V tokens gives N x V scores for N action tokens; the losses need N of them and N logarithms
of sums of exponentials. For GPT-2's vocabulary the matrix is 200 MB per 1,000 tokens and head in float32, its softmax
and its gradient as much again, so it is made here in blocks of rows, and each block is used up before the next.
"""

from __future__ import annotations

from typing import Any, cast

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd.function import once_differentiable

ROWS_PER_BLOCK = 512
# Where a row of scores does not begin at an aligned address (GPT-2 has 50,257 tokens), products with it are slower.
ROW_MULTIPLE = 64
TOKENS_PER_PIECE = 4096


def weighted_logsumexp(
    hidden: Tensor, weight: Tensor, bias: Tensor, coefficients: Tensor, chunk: int = ROWS_PER_BLOCK
) -> Tensor:
    """The sum over n of coefficients_n times logsumexp_v (hidden_n . weight_v + bias_v).

    The gradients of `hidden`, `weight` and `bias` are worked out along with the value, while a block of scores is at
    hand; going backward multiplies them by the gradient of the sum. Where none is wanted (`torch.no_grad`, frozen
    tensors), that work is left out. There is no second derivative. Inside activation checkpointing with
    `use_reentrant=False` the result is right, but the work is done twice: keep it outside.

    Under autocast the products are in autocast's type, as those of `torch.nn.Linear` are. All else, the sums of
    gradients over blocks too, is in float32 whatever the inputs are (float64 for float64). Where the type would be
    float16 the products are in float32 as well: a probability in a large vocabulary times a hidden unit can be below
    what float16 holds.

    Args:
        hidden: Shape (N, H); N may be 0.
        weight: Shape (V, H).
        bias: Shape (V,).
        coefficients: Shape (N,). Constants: they get no gradient.
        chunk: Rows of `hidden` per block, at least 1; chunk x V scores are in memory at a time.

    Returns:
        A scalar, float32 (float64 for float64 inputs).
    """
    differentiate = torch.is_grad_enabled()  # a Function's forward cannot ask: there it is always off
    apply: Any = _WeightedLogsumexp.apply
    return cast(Tensor, apply(hidden, weight, bias, coefficients.detach(), chunk, differentiate))


def taken(hidden: Tensor, weight: Tensor, bias: Tensor, tokens: Tensor) -> Tensor:
    """hidden_n . weight_t + bias_t for the token t = tokens_n: one score per row, from the rows of `weight` it needs.

    Args:
        hidden: Shape (N, H).
        weight: Shape (V, H).
        bias: Shape (V,).
        tokens: Indices into V, shape (N,).

    Returns:
        Shape (N,), float32 (float64 for float64 inputs), in which it is computed too.
    """
    exact = _exact_type(hidden, weight)
    # Table look-ups: their gradients are summed in a fixed order, on a GPU too.
    rows, biases = F.embedding(tokens, weight), F.embedding(tokens, bias[:, None])[:, 0]
    return (hidden.to(exact) * rows.to(exact)).sum(-1) + biases.to(exact)


class _WeightedLogsumexp(torch.autograd.Function):
    """See `weighted_logsumexp`."""

    @staticmethod
    def forward(
        ctx: Any, hidden: Tensor, weight: Tensor, bias: Tensor, coefficients: Tensor, chunk: int, differentiate: bool
    ) -> Tensor:
        wanted = [differentiate and needed for needed in ctx.needs_input_grad[:3]]
        product_type = _product_type(hidden, weight)
        with torch.autocast(hidden.device.type, enabled=False):
            total, gradients = _value_and_gradients(hidden, weight, bias, coefficients, chunk, product_type, wanted)
        ctx.types = hidden.dtype, weight.dtype, bias.dtype
        ctx.save_for_backward(*gradients)
        return total

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_output: Tensor) -> tuple[Tensor | None, ...]:
        # Multiplied before they take on the inputs' types, for a loss that was scaled up because these are small; and
        # not in place, since retain_graph=True may bring us here again.
        gradients = [
            None if gradient is None else (gradient * grad_output).to(dtype)
            for gradient, dtype in zip(ctx.saved_tensors, ctx.types, strict=True)
        ]
        return *gradients, None, None, None


def _value_and_gradients(
    hidden: Tensor,
    weight: Tensor,
    bias: Tensor,
    coefficients: Tensor,
    chunk: int,
    product_type: torch.dtype,
    wanted: list[bool],
) -> tuple[Tensor, list[Tensor | None]]:
    """The weighted sum, and its gradients by those of `hidden`, `weight`, `bias` that are `wanted`, in exact types."""
    exact = _exact_type(hidden, weight)
    vocabulary, rows = len(weight), min(chunk, len(hidden))
    hidden, weight, bias = hidden.to(product_type), weight.to(product_type), bias.to(exact)
    total = torch.zeros((), dtype=exact, device=hidden.device)
    by_hidden, by_weight, by_bias = (
        torch.zeros_like(tensor, dtype=exact) if want else None
        for tensor, want in zip((hidden, weight, bias), wanted, strict=True)
    )
    # One block's worth of memory for all blocks: fresh memory costs time to map, on a CPU as much as a softmax does.
    row_size = -(-vocabulary // ROW_MULTIPLE) * ROW_MULTIPLE
    products = torch.empty(rows, row_size, dtype=product_type, device=hidden.device)[:, :vocabulary]
    scores = products if product_type == exact else torch.empty_like(products, dtype=exact)
    for start in range(0, len(hidden), chunk):
        block = hidden[start : start + chunk]
        factors = coefficients[start : start + chunk].to(exact)
        products, scores = products[: len(block)], scores[: len(block)]
        torch.mm(block, weight.t(), out=products)
        largest = scores.copy_(products).add_(bias).amax(1, keepdim=True)
        sums = scores.sub_(largest).exp_().sum(1)
        total += (factors * (largest[:, 0] + sums.log())).sum()
        # Softmax times coefficient is exponentials times this. It goes into the small matrices, not the large one.
        factors = (factors / sums)[:, None]
        if by_bias is not None:
            by_bias += (scores.t() @ factors)[:, 0]
        if by_hidden is None and by_weight is None:
            continue
        exponentials = products.copy_(scores)
        if by_hidden is not None:
            by_hidden[start : start + chunk] = (exponentials @ weight).to(exact) * factors
        if by_weight is not None:
            _add_product(by_weight, exponentials, (block.to(exact) * factors).to(product_type))
    return total, [by_hidden, by_weight, by_bias]


def _add_product(total: Tensor, left: Tensor, right: Tensor) -> None:
    """Add left^T right, shapes (N, V) and (N, H), to the (V, H) `total`, which may be of a more exact type."""
    if total.dtype == left.dtype:
        total.addmm_(left.t(), right)
        return
    # In pieces that are converted and added while a CPU still has them in its cache.
    for start in range(0, len(total), TOKENS_PER_PIECE):
        piece = slice(start, start + TOKENS_PER_PIECE)
        total[piece] += left[:, piece].t() @ right


def _exact_type(hidden: Tensor, weight: Tensor) -> torch.dtype:
    """float32, or float64 where an input is."""
    return torch.promote_types(torch.promote_types(hidden.dtype, weight.dtype), torch.float32)


def _product_type(hidden: Tensor, weight: Tensor) -> torch.dtype:
    """What `hidden` and `weight` are multiplied in, see `weighted_logsumexp`."""
    own, device = torch.promote_types(hidden.dtype, weight.dtype), hidden.device.type
    if own != torch.float64 and torch.is_autocast_enabled(device):
        own = torch.get_autocast_dtype(device)
    return torch.float32 if own == torch.float16 else own
