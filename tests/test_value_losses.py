"""Losses of value heads: LMRL-Gym's numbers, hand-worked ones, and the fused kernel against plain autograd."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.testing import assert_close
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.checkpoint import checkpoint

from trainers.fused import taken, weighted_logsumexp
from trainers.heads import Head
from trainers.losses import ilql_loss, mc_loss, returns_to_go

torch.set_num_threads(1)

# Inputs and outputs of LMRL-Gym's own loss functions (JAX), run on random numbers; gradients to seven decimals.
# Three rows of six positions, eight of them actions, five tokens; what is not an action is left out of the logits.
ACTS = [[0, 1, 1, 0, 0, 1], [1, 1, 0, 1, 0, 0], [0, 0, 1, 1, 0, 0]]
TOKENS = [4, 4, 1, 0, 2, 4, 3, 0]
VALUES = [
    [0.6984571, 0.0037709, 0.9318483, 0.339965, -0.0156821, 0.1609282],
    [-0.1906535, -0.3948495, -0.2677335, -1.1280113, 0.2804417, -0.9931236],
    [0.8416313, -0.2494586, 0.049495, 0.4938368, 0.6433145, -1.5706234],
]
VALUE_AFTER = [0.0, 0.8801789, -1.6981058]  # the first row ended
REWARDS = [[0.0, 0.0, -1.0, 0.0, 0.0, 1.0], [0.0, -1.0, 0.0, 0.5, 0.0, 0.0], [0.0, 0.0, 0.0, -1.0, 0.0, 0.0]]
Q1 = [
    [-0.9772779, 0.9500884, -0.1513572, -0.1032189, 0.4105985],
    [0.1440436, 1.4542735, 0.7610377, 0.121675, 0.4438632],
    [-1.4543657, 0.0457585, -0.1871839, 1.5327792, 1.4693588],
    [0.1549474, 0.3781625, -0.8877857, -1.9807965, -0.3479122],
    [0.156349, 1.2302907, 1.2023798, -0.3873268, -0.3023027],
    [-0.4380743, -1.2527953, 0.7774904, -1.6138978, -0.2127403],
    [0.7290906, 0.1289829, 1.1394007, -1.2348258, 0.4023416],
    [-0.6848101, -0.8707972, -0.5788497, -0.3115525, 0.0561653],
]
Q2 = [
    [0.7065732, 0.0105, 1.7858706, 0.1269121, 0.4019894],
    [1.8831507, -1.347759, -1.270485, 0.9693967, -1.1731234],
    [0.8024564, 0.947252, -0.1550101, 0.6140794, 0.9222067],
    [0.3764255, -1.0994008, 0.2982382, 1.3263859, -0.6945679],
    [-0.1496345, -0.4351535, 1.8492638, 0.6722947, 0.4074618],
    [0.6764333, 0.5765908, -0.2082988, 0.3960067, -1.0930616],
    [-0.4980325, 1.9295321, 0.9494208, 0.0875512, -1.2254355],
    [0.844363, -1.0002153, -1.5447711, 1.1880298, 0.3169426],
]
TARGET_Q1 = [
    [-1.6020577, -1.1043833, 0.0521651, -0.739563, 1.5430146],
    [-1.2928569, 0.2670509, -0.0392828, -1.1680934, 0.5232767],
    [-1.616956, -0.0243261, -0.7380309, 0.2799246, -0.0981504],
    [0.9101789, 0.3172182, 0.786328, -0.4664191, -0.9444463],
    [-0.4100497, -0.0170204, 0.3791517, 2.2593091, -0.0422572],
    [0.063262, 0.1565065, 0.232181, -0.5973161, -0.2379217],
    [0.5210649, -0.575788, 0.1419532, -0.3193284, 0.6915388],
    [0.6947491, -0.7255974, -1.383364, -1.5829384, 0.6103794],
]
TARGET_Q2 = [
    [-0.3909534, 0.4937418, -0.1161039, -2.0306845, 2.0644929],
    [-0.1105407, 1.0201727, -0.6920499, 1.5363771, 0.2863437],
    [1.1368914, 0.097725, 0.5829537, -0.399449, 0.3700559],
    [-1.3065269, 1.6581306, -0.118164, -0.6801782, 0.6663831],
    [-0.4607198, -1.3342584, -1.3467175, 0.6937732, -0.1595734],
    [0.0943516, -0.0421715, -0.2868872, -0.0616264, -0.1073053],
    [1.0685093, -0.4533858, -0.6878376, -1.2140774, -0.4409226],
    [-0.2803555, -0.3646936, 0.1567039, 0.5785215, 0.3496545],
]
# Losses in the order of ILQLLoss, gradients of the total.
ILQL_CASES: list[dict[str, Any]] = [
    {
        "gamma": 0.99,
        "tau": 0.7,
        "cql_weight": 0.01,
        "losses": [3.9517064, 1.4751923, 2.2103605, 0.2282834, 1.8405609, 1.9464529],
        "q1": [
            [7.55e-05, 0.0005187, 0.0001724, 0.0001809, -0.064939],
            [0.0001406, 0.0005214, 0.0002607, 0.0001375, 0.1595079],
            [2.63e-05, -0.1204122, 9.35e-05, 0.0005221, 0.00049],
            [0.0673569, 0.0004699, 0.0001325, 4.44e-05, 0.0002273],
            [0.0001565, 0.0004581, 0.4140844, 9.09e-05, 9.89e-05],
            [0.000196, 8.68e-05, 0.0006611, 6.05e-05, -0.1990191],
            [0.0003191, 0.0001751, 0.0004809, -0.2166708, 0.0002301],
            [0.2484818, 0.0001599, 0.0002141, 0.0002796, 0.0004039],
        ],
        "q2": [
            [0.0002178, 0.0001086, 0.000641, 0.000122, -0.0661569],
            [0.0008168, 3.23e-05, 3.49e-05, 0.0003276, -0.0427668],
            [0.0002781, -0.0075221, 0.0001067, 0.0002303, 0.0003135],
            [0.0949118, 5.62e-05, 0.0002275, 0.000636, 8.43e-05],
            [9.5e-05, 7.14e-05, 0.4952008, 0.0002162, 0.0001659],
            [0.0003854, 0.0003487, 0.0001591, 0.0002911, -0.3092392],
            [6.63e-05, 0.0007509, 0.0002818, -0.0512994, 3.2e-05],
            [0.4398206, 6.08e-05, 3.53e-05, 0.0005423, 0.000227],
        ],
        "v": [-0.1346838, 0.0242064, 0.006947, 0.0418453, 0.035695, -0.0778828, 0.047384, 0.0290322],
    },
    {
        "gamma": 0.9,
        "tau": 0.99,
        "cql_weight": 0.5,
        "losses": [5.519217, 1.3673584, 2.0597329, 0.1986186, 1.8405609, 1.9464529],
        "q1": [
            [0.0037745, 0.0259363, 0.008621, 0.0090461, -0.1008861],
            [0.0070321, 0.026068, 0.0130329, 0.0068765, 0.1093691],
            [0.0013166, -0.1758791, 0.0046749, 0.0261059, 0.0245016],
            [0.020083, 0.0234941, 0.0066247, 0.0022206, 0.0113666],
            [0.0078262, 0.0229065, 0.3619748, 0.004544, 0.0049472],
            [0.009802, 0.0043399, 0.0330542, 0.0030245, -0.2383333],
            [0.0159536, 0.0087546, 0.0240466, -0.2701715, 0.0115068],
            [0.1775621, 0.0079927, 0.0107025, 0.0139821, 0.0201962],
        ],
        "q2": [
            [0.010891, 0.0054296, 0.0320481, 0.0060999, -0.1090529],
            [0.0408417, 0.0016141, 0.0017438, 0.0163782, -0.1003227],
            [0.0139038, -0.0530235, 0.0053372, 0.0115165, 0.0156725],
            [0.0412729, 0.0028115, 0.0113741, 0.0318007, 0.0042145],
            [0.0047518, 0.0035715, 0.4556316, 0.0108097, 0.0082947],
            [0.0192682, 0.0174373, 0.0079544, 0.0145564, -0.3573691],
            [0.0033134, 0.0375451, 0.0140895, -0.1011617, 0.0016009],
            [0.3783128, 0.0030402, 0.0017636, 0.0271172, 0.0113484],
        ],
        "v": [-0.1904814, 0.0008069, 0.0002316, 0.0013948, 0.0011898, -0.1101486, 0.0015795, 0.0009677],
    },
]
RETURNS = [-0.9412221, -0.1282297, 1.0223032, 1.5078759, -0.9233417, 1.2859726, -2.2512612, -0.3436173]
MC_LOSSES = [0.8217275, 0.8033219, 1.8405609]
MC_GRADIENT = [
    [7.55e-05, 0.0005187, 0.0001724, 0.0001809, 0.16803],
    [0.0001406, 0.0005214, 0.0002607, 0.0001375, 0.0704514],
    [2.63e-05, -0.1232001, 9.35e-05, 0.0005221, 0.00049],
    [-0.1699902, 0.0004699, 0.0001325, 4.44e-05, 0.0002273],
    [0.0001565, 0.0004581, 0.2649107, 9.09e-05, 9.89e-05],
    [0.000196, 8.68e-05, 0.0006611, 6.05e-05, -0.1883435],
    [0.0003191, 0.0001751, 0.0004809, 0.1258492, 0.0002301],
    [-0.0437066, 0.0001599, 0.0002141, 0.0002796, 0.0004039],
]


def leaf(values: Any) -> Tensor:
    return torch.tensor(values, requires_grad=True)


def at_actions(rows: list[list[float]]) -> Tensor:
    return torch.tensor(rows)[torch.tensor(ACTS) == 1]


def successor_values() -> Tensor:
    """V at the next action of the row, after its last action what comes then."""
    found = []
    for acts, values, after in zip(ACTS, VALUES, VALUE_AFTER, strict=True):
        own = [value for act, value in zip(acts, values, strict=True) if act]
        found += [*own[1:], after]
    return torch.tensor(found)


def taken_and_cql(logits: Tensor, tokens: Tensor) -> tuple[Tensor, Tensor]:
    """Through the kernel: logits are their own product with the identity."""
    identity, zero = torch.eye(logits.shape[1]), torch.zeros(logits.shape[1])
    values = taken(logits, identity, zero, tokens)
    return values, weighted_logsumexp(logits, identity, zero, torch.ones(len(logits)), chunk=3) - values.sum()


@pytest.mark.parametrize("case", ILQL_CASES)
def test_ilql_loss_and_gradients_are_the_reference_s(case: dict[str, Any]) -> None:
    tokens, q1, q2, v = torch.tensor(TOKENS), leaf(Q1), leaf(Q2), at_actions(VALUES).requires_grad_()
    target_q = torch.minimum(*(torch.tensor(t)[range(8), tokens] for t in (TARGET_Q1, TARGET_Q2)))
    (q1_taken, cql1), (q2_taken, cql2) = taken_and_cql(q1, tokens), taken_and_cql(q2, tokens)
    next_v, bootstrap = successor_values(), torch.ones(8)
    next_v[2], bootstrap[2] = 123.0, 0.0  # the first row's last action ended the task: what V says there is nothing
    loss = ilql_loss(
        q1_taken,
        q2_taken,
        v,
        target_q,
        next_v,
        at_actions(REWARDS),
        torch.full((8,), case["gamma"]),
        bootstrap,
        cql1,
        cql2,
        tau=case["tau"],
        cql_weight=case["cql_weight"],
        count=8,
    )
    assert [part.item() for part in loss] == pytest.approx(case["losses"], abs=1e-5)
    loss.total.backward()
    for name, tensor in {"q1": q1, "q2": q2, "v": v}.items():
        assert_close(tensor.grad, torch.tensor(case[name]), rtol=0, atol=1e-6)


def test_mc_loss_and_gradient_are_the_reference_s() -> None:
    q = leaf(Q1)
    values, cql = taken_and_cql(q, torch.tensor(TOKENS))
    loss = mc_loss(values, torch.tensor(RETURNS), cql, cql_weight=0.01, count=8)
    assert [part.item() for part in loss] == pytest.approx(MC_LOSSES, abs=1e-5)
    loss.total.backward()
    assert_close(q.grad, torch.tensor(MC_GRADIENT), rtol=0, atol=1e-6)


HAND: dict[str, Tensor] = {
    "target_q": torch.tensor([1.0, 0.0]),
    "next_v": torch.tensor([1.0, 7.0]),
    "rewards": torch.tensor([0.0, -1.0]),
    "discounts": torch.tensor([0.5, 0.5]),
    "bootstrap": torch.tensor([1.0, 0.0]),
    "cql1": torch.tensor(2.0),
    "cql2": torch.tensor(4.0),
}


def test_ilql_loss_by_hand() -> None:
    """Two tokens, the second one ends the task; tau 3/4.

    Bellman targets: 0 + 1/2 * 1 = 0.5 and -1. So q1 = 1/2 (0.5^2 + 1^2) / 2 = 0.3125, q2 = 1/2 (1.5^2 + 0) / 2 =
    0.5625. V is below its target by 0.5 (weight 3/4) and above by 1 (weight 1/4): v = 1/2 (3/4 * 0.25 + 1/4 * 1) / 2 =
    0.109375. The conservative terms are 2 / 2 and 4 / 2: total = 0.984375 + 0.1 * 3.
    """
    q1, q2, v = leaf([1.0, 0.0]), leaf([2.0, -1.0]), leaf([0.5, 1.0])
    loss = ilql_loss(q1, q2, v, **HAND, tau=0.75, cql_weight=0.1, count=2)
    assert [part.item() for part in loss] == pytest.approx([1.284375, 0.3125, 0.5625, 0.109375, 1.0, 2.0])
    loss.total.backward()
    assert q1.grad is not None and q2.grad is not None and v.grad is not None
    assert q1.grad.tolist() == pytest.approx([0.25, 0.5])
    assert q2.grad.tolist() == pytest.approx([0.75, 0.0])
    assert v.grad.tolist() == pytest.approx([-0.1875, 0.125])  # 3/4 * -0.5 / 2 and 1/4 * 1 / 2


def test_what_is_aimed_at_gets_no_gradient() -> None:
    q, v = leaf([1.0, 0.0]), leaf([0.5, 1.0])
    aims = {name: HAND[name].clone().requires_grad_() for name in ("target_q", "next_v")}
    ilql_loss(q, q, v, **{**HAND, **aims}, tau=0.75, cql_weight=0.1, count=2).total.backward()
    returns = leaf([1.0, 2.0])
    mc_loss(q, returns, HAND["cql1"], cql_weight=0.1, count=2).total.backward()
    assert all(tensor.grad is None for tensor in (*aims.values(), returns))


def test_weights_count_a_token_several_times_or_not_at_all() -> None:
    q1, q2, v = leaf([1.0, 0.0]), leaf([2.0, -1.0]), leaf([0.5, 1.0])
    loss = ilql_loss(q1, q2, v, **HAND, tau=0.75, cql_weight=0.0, count=2, weights=torch.tensor([2, 0]))
    # The first token's parts above, twice: 0.125, 1.125, 0.09375; over 2.
    assert [part.item() for part in loss[:4]] == pytest.approx([1.34375, 0.125, 1.125, 0.09375])
    loss.total.backward()
    assert all(tensor.grad is not None and tensor.grad[1] == 0.0 for tensor in (q1, q2, v))


def test_mc_loss_by_hand() -> None:
    """Q is off by 1 and by -2: 1/2 (1 + 4) / 2 = 1.25; the second token three times, over 4: 1/2 (1 + 12) / 4."""
    q, returns, cql = torch.tensor([1.0, -1.0]), torch.tensor([0.0, 1.0]), torch.tensor(4.0)
    assert mc_loss(q, returns, cql, cql_weight=0.5, count=2) == pytest.approx((2.25, 1.25, 2.0))
    weighted = mc_loss(q, returns, cql, cql_weight=0.5, count=torch.tensor(4), weights=torch.tensor([1.0, 3.0]))
    assert weighted == pytest.approx((2.125, 1.625, 1.0))


def test_no_tokens_are_no_loss() -> None:
    none, zero = torch.zeros(0), torch.tensor(0.0)
    loss = ilql_loss(none, none, none, none, none, none, none, none, zero, zero, tau=0.7, cql_weight=1.0, count=0)
    assert [part.item() for part in loss] == [0.0] * 6
    assert mc_loss(none, none, zero, cql_weight=1.0, count=0).total.item() == 0.0


def test_losses_are_computed_in_float32() -> None:
    low = [tensor.bfloat16() for tensor in HAND.values()]
    q = torch.tensor([1.0, 0.0], dtype=torch.bfloat16)
    assert all(part.dtype == torch.float32 for part in ilql_loss(q, q, q, *low, tau=0.7, cql_weight=1.0, count=2))
    assert mc_loss(q, q, q[0], cql_weight=1.0, count=2).total.dtype == torch.float32


@pytest.mark.parametrize(
    ("rewards", "gamma", "expected"),
    [  # LMRL-Gym's own numbers
        ([0.0, -1.0, 0.0, -1.0, 0.0], 0.99, [-1.960299, -1.9800999, -0.99, -1.0, 0.0]),
        ([-1.0, -1.0, -1.0, 0.0], 1.0, [-3.0, -2.0, -1.0, 0.0]),
        ([0.0, 0.0, 1.0], 0.5, [0.25, 0.5, 1.0]),
        ([], 0.9, []),
    ],
)
def test_returns_to_go(rewards: list[float], gamma: float, expected: list[float]) -> None:
    returns = returns_to_go(torch.tensor(rewards), torch.full((len(rewards),), gamma))
    assert returns.dtype == torch.float64 and returns.tolist() == pytest.approx(expected, abs=1e-6)


def test_returns_to_go_by_hand() -> None:
    # From the end: 4; 2 + 0 * 4; -1 + 0.5 * 2; 1 + 1 * 0. A discount of 0 cuts the future off, the last is not used.
    returns = returns_to_go(torch.tensor([1.0, -1.0, 2.0, 4.0]), torch.tensor([1.0, 0.5, 0.0, 9.0]))
    assert returns.tolist() == [1.0, 0.0, 2.0, 4.0]
    # 5,000 tokens: powers of the discount are far below the least float; the sum is 1 / (1 - 0.5).
    assert returns_to_go(torch.ones(5000), torch.full((5000,), 0.5))[0].item() == 2.0
    with pytest.raises(ValueError, match=r"\(3,\) and discounts \(2,\)"):
        returns_to_go(torch.ones(3), torch.ones(2))


def problem(rows: int, vocabulary: int, width: int = 8, dtype: torch.dtype = torch.float32) -> list[Tensor]:
    """Hidden states (N, H), weight (V, H), bias (V,), all with gradients, and coefficients (N,) of either sign."""
    generator = torch.Generator().manual_seed(rows + vocabulary)
    shapes = [(rows, width), (vocabulary, width), (vocabulary,), (rows,)]
    tensors = [torch.randn(shape, generator=generator).to(dtype) for shape in shapes]
    return [*(tensor.requires_grad_() for tensor in tensors[:3]), tensors[3].float()]


def exact_gradients(inputs: list[Tensor], scale: float = 1.0) -> tuple[Tensor, list[Tensor]]:
    """The value, and `scale` times the gradients, of plain torch in float64."""
    hidden, weight, bias = (tensor.detach().double().requires_grad_() for tensor in inputs[:3])
    value = (inputs[3].double() * torch.logsumexp(hidden @ weight.T + bias, 1)).sum()
    (scale * value).backward()
    return value.detach(), [tensor.grad for tensor in (hidden, weight, bias) if tensor.grad is not None]


def assert_near(found: Tensor | None, expected: Tensor, tolerance: float) -> None:
    """The largest error is at most `tolerance` of the largest number."""
    assert found is not None and found.isfinite().all() and found.shape == expected.shape
    if found.numel():
        assert (found.double() - expected).abs().max() <= tolerance * expected.abs().max().clamp(min=1e-9)


@pytest.mark.parametrize("rows", [0, 1, 7, 1300])
@pytest.mark.parametrize(("vocabulary", "chunk"), [(1, 512), (37, 4), (37, 512), (300, 2000), (5000, 700)])
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 1e-5), (torch.bfloat16, 2e-2)])
def test_fused_sum_is_the_plain_one(
    rows: int, vocabulary: int, chunk: int, dtype: torch.dtype, tolerance: float
) -> None:
    inputs = problem(rows, vocabulary, dtype=dtype)
    expected, gradients = exact_gradients(inputs, scale=-2.5)
    total = weighted_logsumexp(*inputs, chunk=chunk)
    assert total.dtype == torch.float32 and total.shape == ()
    # The sum is of numbers of either sign, so it is compared with the size of what is summed.
    assert abs(total.item() - expected.item()) <= tolerance * max(1.0, inputs[3].abs().sum().item())
    (-2.5 * total).backward()
    for tensor, gradient in zip(inputs, gradients, strict=False):
        assert tensor.grad is not None and tensor.grad.dtype == dtype
        assert_near(tensor.grad, gradient, tolerance)
    again = weighted_logsumexp(*inputs, chunk=chunk)
    assert torch.equal(total, again)


def test_fused_sum_passes_gradcheck() -> None:
    *inputs, coefficients = problem(5, 4, 3, torch.float64)
    assert torch.autograd.gradcheck(lambda *t: weighted_logsumexp(*t, coefficients.double(), 2), inputs)


def test_two_calls_add_up_and_the_graph_may_be_kept() -> None:
    inputs = problem(20, 11)
    _, gradients = exact_gradients(inputs)
    hidden, weight, bias, coefficients = inputs
    for part in (slice(0, 13), slice(13, 20)):
        total = weighted_logsumexp(hidden[part], weight, bias, coefficients[part], chunk=4)
        total.backward(retain_graph=True)
        (0.5 * total).backward()
    for tensor, gradient in zip(inputs, gradients, strict=False):
        assert_near(tensor.grad, 1.5 * gradient, 1e-5)


@pytest.mark.parametrize("reentrant", [True, False])
def test_activation_checkpointing_changes_nothing(reentrant: bool) -> None:
    inputs = problem(20, 11)
    _, gradients = exact_gradients(inputs)
    checkpoint(weighted_logsumexp, *inputs, 4, use_reentrant=reentrant).backward()
    for tensor, gradient in zip(inputs, gradients, strict=False):
        assert_near(tensor.grad, gradient, 1e-5)


def test_scores_far_from_zero_neither_overflow_nor_vanish() -> None:
    scores = torch.tensor([[1000.0, 1000.0, -1000.0], [-1000.0, -1000.0, -3000.0]], requires_grad=True)
    total = weighted_logsumexp(scores, torch.eye(3), torch.zeros(3), torch.tensor([1.0, 2.0]))
    assert total.item() == pytest.approx(-1000 + 3 * math.log(2))
    total.backward()
    assert_close(scores.grad, torch.tensor([[0.5, 0.5, 0.0], [1.0, 1.0, 0.0]]))


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.bfloat16, 2e-2), (torch.float16, 1e-5)])
def test_autocast(dtype: torch.dtype, tolerance: float) -> None:
    inputs = problem(40, 300)
    expected, gradients = exact_gradients(inputs)
    with torch.autocast("cpu", dtype):
        total = weighted_logsumexp(*inputs, chunk=16)
    assert total.dtype == torch.float32
    assert abs(total.item() - expected.item()) <= tolerance * inputs[3].abs().sum().item()
    total.backward()
    for tensor, gradient in zip(inputs, gradients, strict=False):
        assert_near(tensor.grad, gradient, tolerance)


def test_float16_keeps_what_is_only_large_enough_after_loss_scaling() -> None:
    """With a mean over many tokens, a softmax over many words is below float16's least number until it is scaled."""
    inputs = [tensor.detach() for tensor in problem(16, 3000)]
    half = [tensor.half().requires_grad_() for tensor in inputs[:3]]
    inputs = [*half, inputs[3].abs() * 1e-5]
    scale = 2.0**14
    _, gradients = exact_gradients(inputs, scale)
    (scale * weighted_logsumexp(*inputs)).backward()
    for tensor, gradient in zip(inputs, gradients, strict=False):
        assert_near(tensor.grad, gradient, 2e-3)


class LargestTensor(TorchDispatchMode):
    """Remembers the number of elements of the largest tensor that was made (views are not made)."""

    largest = 0

    def __torch_dispatch__(
        self, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        given = {t.untyped_storage().data_ptr() for t in tree_leaves((args, kwargs)) if isinstance(t, Tensor)}
        result = func(*args, **(kwargs or {}))
        for tensor in tree_leaves(result):
            if isinstance(tensor, Tensor) and tensor.untyped_storage().data_ptr() not in given:
                made = tensor.untyped_storage().nbytes() // tensor.element_size()
                self.largest = max(self.largest, made)
        return result


def test_the_matrix_of_all_scores_is_never_made() -> None:
    rows, vocabulary, width, chunk = 1300, 320, 8, 50
    inputs, tokens = problem(rows, vocabulary, width), torch.arange(rows) % vocabulary
    with LargestTensor() as plain:
        torch.logsumexp(inputs[0] @ inputs[1].T, 1)
    assert plain.largest == rows * vocabulary
    with LargestTensor() as fused:
        (weighted_logsumexp(*inputs, chunk=chunk) - taken(*inputs[:3], tokens).sum()).backward()
    assert fused.largest == chunk * vocabulary


@pytest.mark.parametrize("wanted", [[], [0], [1, 2], [2]])
def test_gradients_that_nobody_wants_are_not_worked_out(wanted: list[int]) -> None:
    rows, vocabulary, width, chunk = 60, 64, 50, 2
    inputs = [tensor.detach() for tensor in problem(rows, vocabulary, width)]
    for number in wanted:
        inputs[number].requires_grad_()
    with LargestTensor() as seen:
        total = weighted_logsumexp(*inputs, chunk=chunk)
    sizes = [rows * width, vocabulary * width, vocabulary]
    assert seen.largest == max([chunk * vocabulary, *(sizes[number] for number in wanted)])
    assert total.requires_grad == bool(wanted)
    with LargestTensor() as seen, torch.no_grad():
        assert weighted_logsumexp(*inputs, chunk=chunk).item() == total.item()
    assert seen.largest == chunk * vocabulary


@pytest.mark.parametrize("rows", [0, 9])
def test_taken_is_an_entry_of_the_whole_product(rows: int) -> None:
    inputs, tokens = problem(rows, 6)[:3], torch.tensor([0, 5, 5, 1, 0, 0, 2, 5, 3])[:rows]
    plain = [tensor.detach().clone().requires_grad_() for tensor in inputs]
    upstream = torch.arange(1.0, rows + 1)
    values = taken(*inputs, tokens)
    expected = F.linear(*plain)[torch.arange(rows), tokens]
    assert_close(values, expected)
    (values @ upstream).backward()
    (expected @ upstream).backward()
    for tensor, other in zip(inputs, plain, strict=True):
        assert_close(tensor.grad, other.grad)
    assert taken(*(tensor.bfloat16() for tensor in inputs), tokens).dtype == torch.float32


def random_head(width: int = 16, size: int = 40, **options: Any) -> Head:
    """A head whose last layer is not at its first zeros."""
    generator = torch.Generator().manual_seed(0)
    head = Head(width, size, generator=generator, **options)
    with torch.no_grad():
        for parameter in head.output.parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=generator))
    return head


def batch(rows: int = 30, size: int = 40) -> tuple[Tensor, Tensor, Tensor]:
    """States, tokens and weights, some of which are 0."""
    generator = torch.Generator().manual_seed(1)
    tokens = torch.randint(size, (rows,), generator=generator)
    return torch.randn(rows, 16, generator=generator), tokens, torch.arange(rows) % 3


def plain_taken_and_cql(head: Head, states: Tensor, tokens: Tensor, weights: Tensor) -> tuple[Tensor, Tensor]:
    logits = head(states).float()
    return logits[torch.arange(len(tokens)), tokens], (
        weights * F.cross_entropy(logits, tokens, reduction="none")
    ).sum()


def gradients_after(head: Head, loss: Tensor) -> dict[str, Tensor]:
    head.zero_grad()
    loss.backward()
    return {name: parameter.grad.clone() for name, parameter in head.named_parameters() if parameter.grad is not None}


def test_head_s_first_values() -> None:
    before = torch.get_rng_state()
    head = Head(400, 7, hidden=300, bias=-4.4, generator=torch.Generator().manual_seed(0))
    assert torch.equal(torch.get_rng_state(), before)
    assert list(head.state_dict()) == ["dense.weight", "dense.bias", "output.weight", "output.bias"]
    assert head.dense is not None and head.dense.weight.shape == (300, 400)
    # LeCun's normal: variance 1 / 400, nothing beyond two of the standard deviations it was cut from.
    std = head.dense.weight.std().item()
    assert std == pytest.approx(0.05, rel=0.01) and head.dense.weight.abs().max() <= 0.05 / 0.8796 * 2
    assert not head.dense.bias.any() and not head.output.weight.any()
    assert torch.equal(head(torch.randn(5, 400)), torch.full((5, 7), -4.4))
    same = Head(400, 7, hidden=300, generator=torch.Generator().manual_seed(0))
    assert same.dense is not None and torch.equal(same.dense.weight, head.dense.weight)
    assert Head(4, 1)(torch.randn(2, 3, 4)).shape == (2, 3, 1)


@pytest.mark.parametrize("linear", [False, True])
def test_head_s_fused_path_is_the_plain_one(linear: bool) -> None:
    head, (states, tokens, weights) = random_head(linear=linear), batch()
    assert ("dense.weight" in head.state_dict()) != linear
    values, cql = head.taken_and_cql(states, tokens, weights)
    plain_values, plain_cql = plain_taken_and_cql(head, states, tokens, weights)
    assert_close(values, plain_values)
    assert_close(head.taken(states, tokens), plain_values)
    assert cql.item() == pytest.approx(plain_cql.item(), rel=1e-5)
    fused = gradients_after(head, values.square().mean() + 0.1 * cql)
    plain = gradients_after(head, plain_values.square().mean() + 0.1 * plain_cql)
    assert fused.keys() == plain.keys() and len(fused) == (2 if linear else 4)
    for name, gradient in plain.items():
        assert_near(fused[name], gradient, 1e-5)


def test_head_under_autocast() -> None:
    head, (states, tokens, weights) = random_head(), batch()
    values, cql = head.taken_and_cql(states, tokens, weights)
    exact = gradients_after(head, values.square().mean() + 0.1 * cql)
    with torch.autocast("cpu", torch.bfloat16):
        low_values, low_cql = head.taken_and_cql(states, tokens, weights)
        assert head(states).dtype == torch.bfloat16
    assert low_values.dtype == low_cql.dtype == torch.float32
    assert_near(low_values, values.detach(), 2e-2)
    assert low_cql.item() == pytest.approx(cql.item(), rel=2e-2)
    for name, gradient in gradients_after(head, low_values.square().mean() + 0.1 * low_cql).items():
        assert gradient.dtype == torch.float32
        assert_near(gradient, exact[name], 5e-2)


def test_head_for_some_tokens_is_the_whole_one_without_the_others() -> None:
    ids = torch.tensor([2, 3, 11, 39])
    whole, part = random_head(), random_head(token_ids=ids)
    part.load_state_dict(
        {
            **whole.state_dict(),
            **{f"output.{name}": getattr(whole.output, name).detach()[ids] for name in ("weight", "bias")},
            "token_ids": ids,
            "index_of": part.index_of,
        }
    )
    states, _, weights = batch(6)
    tokens = torch.tensor([39, 2, 2, 11, 3, 39])
    assert_close(part(states), whole(states)[:, ids])
    assert_close(part.taken(states, tokens), whole.taken(states, tokens))
    _, cql = part.taken_and_cql(states, tokens, weights)
    places = torch.tensor([3, 0, 0, 2, 1, 3])
    assert_close(cql, (weights * F.cross_entropy(whole(states)[:, ids], places, reduction="none")).sum())
    wide = part.spread(part(states), -math.inf)
    assert wide.shape == (6, 40) and torch.equal(wide[:, ids], part(states))
    assert (wide == -math.inf).sum() == 6 * 36
    assert whole.spread(wide, 0.0) is wide
    part.check_tokens(tokens)
    with pytest.raises(ValueError, match=r"no values for 3 tokens, such as -1, 4, 40; it has 4 ids of 40"):
        part.check_tokens(torch.tensor([[2, 4], [-1, 40]]))
    with pytest.raises(ValueError, match=r"ids below 40"):
        whole.check_tokens(torch.tensor([40]))


def test_head_says_what_it_cannot_be_made_from() -> None:
    with pytest.raises(ValueError, match="linear head has no hidden layer"):
        Head(4, 5, hidden=3, linear=True)
    for ids in ([3, 1], [1, 1], [-1, 2], [2, 5]):
        with pytest.raises(ValueError, match="must rise from 0 or above to at most 4"):
            Head(4, 5, token_ids=torch.tensor(ids))
    with pytest.raises(ValueError, match="at least one"):
        Head(4, 5, token_ids=torch.tensor([], dtype=torch.long))
    with pytest.raises(ValueError, match="without tokens"):
        Head(4, 5)(torch.zeros(1, 4), weights=torch.ones(1))


def test_tokens_of_weight_zero_have_no_gradient() -> None:
    q1, q2, value = random_head(), random_head(hidden=24), random_head(size=1)
    states, tokens, weights = batch()

    def total(rows: Tensor) -> tuple[Tensor, Tensor]:
        """The loss of some of the tokens, and the gradient of their states."""
        own = states[rows].requires_grad_()
        (q1_taken, cql1), (q2_taken, cql2) = (h.taken_and_cql(own, tokens[rows], weights[rows]) for h in (q1, q2))
        v = value(own)[:, 0]
        ones = torch.ones(len(rows))
        loss = ilql_loss(
            q1_taken, q2_taken, v, ones, v, ones, ones, ones, cql1, cql2,
            tau=0.7, cql_weight=0.1, count=weights.sum(), weights=weights[rows],
        )  # fmt: skip
        (gradient,) = torch.autograd.grad(loss.total, own)
        return loss.total, gradient

    everything, gradient = total(torch.arange(len(tokens)))
    assert not gradient[weights == 0].any() and gradient[weights > 0].any(1).all()
    some, gradient_of_some = total((weights > 0).nonzero()[:, 0])
    assert some.item() == pytest.approx(everything.item())
    assert_close(gradient_of_some, gradient[weights > 0])
