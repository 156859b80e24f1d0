"""Several processes that hold a model in parts: what they learn is what one process learns, and it is saved whole."""

from __future__ import annotations

import os
import subprocess
import sys
import types
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
from accelerate.commands.config.config_args import load_config_from_file
from accelerate.commands.launch import launch_command_parser
from accelerate.utils import DistributedType
from torch import nn

from trainers.sharding import move_towards, whole

torch.set_num_threads(1)
CONFIGS = Path(__file__).parent.parent / "trainers/configs"


def test_a_target_moves_by_the_rate() -> None:
    target, own = torch.tensor([1.0, -2.0]), torch.tensor([2.0, 0.0])
    move_towards(target, own, 0.25)
    assert target.tolist() == [1.25, -1.5]


def test_a_target_in_bfloat16_moves_right_on_average() -> None:
    """A step of 0.005 (0.9 - 1) is an eighth of the distance between neighbours there, so the nearest is no step."""
    own = torch.full((4000,), 0.8984375, dtype=torch.bfloat16)  # 0.9's neighbour
    target = torch.ones(4000, dtype=torch.bfloat16)
    assert torch.equal(target.lerp(own, 0.005), target)
    for step in range(100):
        move_towards(target, own, 0.005, seed=step)
    expected = 0.8984375 + (1 - 0.8984375) * 0.995**100  # 0.95996
    assert target.dtype == torch.bfloat16 and float(target.float().mean()) == pytest.approx(expected, abs=5e-4)
    again = torch.ones(4000, dtype=torch.bfloat16)
    for step in range(100):
        move_towards(again, own, 0.005, seed=step)
    assert torch.equal(again, target), "the same seed is the same rounding, so copies in other processes stay equal"
    still = own.clone()
    move_towards(still, own, 0.005, seed=1)
    assert torch.equal(still, own)


def test_a_target_in_float16_is_refused() -> None:
    with pytest.raises(ValueError, match="targets are in float16"):
        move_towards(torch.ones(2, dtype=torch.float16), torch.ones(2), 0.1)


def partitioned(values: torch.Tensor, rank: int, released: list[int]) -> nn.Parameter:
    """A parameter as ZeRO-3 leaves it on a rank of two: empty, its own half beside it, padded to equal halves."""
    parameter: Any = nn.Parameter(torch.empty(0), requires_grad=False)
    half = -(-len(values) // 2)
    parameter.ds_id, parameter.ds_tensor = 7, torch.zeros(half)
    mine = values[rank * half : (rank + 1) * half]
    parameter.ds_tensor[: len(mine)] = mine
    parameter.partition = lambda: released.append(rank)
    return parameter


def test_partitions_of_zero_move_like_the_whole() -> None:
    first, own, released = torch.tensor([1.0, 2.0, 3.0]), torch.tensor([2.0, 0.0, 5.0]), list[int]()
    parts = []
    for rank in (0, 1):
        target: Any = partitioned(first, rank, released)
        move_towards(target, partitioned(own, rank, []), 0.5)
        parts.append(target.ds_tensor)
    assert torch.cat(parts).tolist() == [1.5, 1.0, 4.0, 0.0]
    assert released == [0, 1], "what it had gathered before is old"


def test_partitions_of_zero_are_saved_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    """With a stand-in for DeepSpeed, which the tests do not need: in its context the parameter has its data."""
    values, opened = torch.tensor([1.0, 2.0, 3.0]), []

    @contextmanager
    def gathered(parameters: list[Any]) -> Iterator[None]:
        opened.append(len(parameters))
        parameters[0].data = values
        yield
        parameters[0].data = torch.empty(0)

    deepspeed: Any = types.ModuleType("deepspeed")
    deepspeed.zero = types.SimpleNamespace(GatheredParameters=gathered)  # an attribute, as there, and no module
    monkeypatch.setitem(sys.modules, "deepspeed", deepspeed)
    parameter, plain = partitioned(values, 0, []), nn.Parameter(torch.ones(2))
    found = whole({"a": parameter, "tied": parameter, "b": plain})
    assert found["a"].tolist() == [1, 2, 3] and found["tied"] is found["a"] and found["b"].tolist() == [1, 1]
    assert not found["b"].requires_grad
    assert whole({"a": parameter}, keep=False) == {} and opened == [1, 1], "the others are helped all the same"


# Each of the processes has half of the rows; the losses are of all rows' tokens, so that they add up.
PARTS = """
import copy, os, sys, types
sys.path.insert(0, {tests!r})
import torch
from accelerate.commands.config.config_args import load_config_from_file
from accelerate.utils import FullyShardedDataParallelPlugin
from accelerate.utils.fsdp_utils import fsdp2_apply_ac, fsdp2_prepare_model
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FSDPModule, fully_shard
from torch.distributed.tensor import DTensor
from torch.nn.parallel import DistributedDataParallel
from test_adapters import filled, lora_model
from test_ilql import TOKENIZER, data, language_model, value_model
from trainers.adapters import state_without_adapters
from trainers.sharding import keep_inputs_exact, whole
from trainers.transitions import transition_collator

torch.distributed.init_process_group("gloo")
rank, mesh = torch.distributed.get_rank(), init_device_mesh("cpu", (2,))
rows, collate = data(number=3), transition_collator(TOKENIZER.pad_token_id)
picked = [rows[n] for n in (0, 1, len(rows) // 2, len(rows) - 1)]
count = torch.tensor(float(sum(len(row["places"]) for row in picked)))


def learn(model, inputs, scale, owner):
    optimizer = torch.optim.SGD([p for p in model.parameters() if p.requires_grad], lr=0.05)
    loss = model(**inputs, count=count)["loss"]
    (scale * loss).backward()
    gradients = {{n.replace("_checkpoint_wrapped_module.", ""): p.grad for n, p in owner.named_parameters()}}
    gradients = whole({{name: gradient for name, gradient in gradients.items() if gradient is not None}})
    optimizer.step()
    owner.move_targets(0.1)
    return loss.detach(), gradients


def check(kind, model, shard, behavior=None):
    alone = copy.deepcopy(model)
    before = {{name: tensor.clone() for name, tensor in alone.state_dict().items()}}
    expected = learn(alone, collate(picked), 1, alone)
    shard(model)
    wrapped = DistributedDataParallel(model) if kind == "ddp" else model
    loss, gradients = learn(wrapped, collate(picked[rank::2]), 2, model)
    torch.distributed.all_reduce(loss)
    assert abs(loss - expected[0]) < 1e-5, (kind, loss, expected[0])
    assert gradients.keys() == expected[1].keys(), (kind, gradients.keys() ^ expected[1].keys())
    for name, gradient in expected[1].items():
        worst = (gradients[name] - gradient).abs().max()
        assert worst < 1e-5 * max(1, gradient.abs().max()), (kind, name, worst)
    state = whole(model.state_dict(keep_vars=True))
    for name, tensor in alone.state_dict().items():
        assert torch.allclose(state[name], tensor, atol=1e-5), (kind, name)
    moved = [n for n in state if "slow" in n and not torch.equal(state[n], before[n])]
    assert len(moved) >= 8, (kind, moved)
    acting = model.acting_state(keep=rank == 0)
    assert rank == 0 or acting == {{}}
    if rank == 0:
        assert acting.keys() == alone.acting_state().keys()
        assert not any(isinstance(tensor, DTensor) for tensor in acting.values())
        for name, tensor in alone.acting_state().items():
            assert torch.allclose(acting[name], tensor, atol=1e-5), (kind, name)
    if behavior is not None:
        plain = language_model().state_dict()
        kept = whole(state_without_adapters(behavior))
        assert kept.keys() == plain.keys() and all(torch.equal(kept[name], plain[name]) for name in plain), kind


def shard(model):
    for trunk in (model.trunk, model.slow_trunk):
        for block in [] if trunk is None else trunk.h:
            fully_shard(block, mesh=mesh)
    fully_shard(model, mesh=mesh)
    assert all(isinstance(p, DTensor) for p in model.parameters())


def shard_as_accelerate(model, mixed_precision="no"):
    # With its own functions and our fsdp2.yaml, activation checkpointing included. Its Accelerator has DDP on CPUs.
    for key, value in load_config_from_file({config!r}).fsdp_config.items():
        os.environ[key.upper()] = str(value).lower() if isinstance(value, bool) else str(value)
    plugin = FullyShardedDataParallelPlugin()
    if mixed_precision != "no":
        plugin.set_mixed_precision(mixed_precision)
    keep_inputs_exact(plugin)
    plugin.set_auto_wrap_policy(model)
    own = types.SimpleNamespace(
        state=types.SimpleNamespace(fsdp_plugin=plugin), mixed_precision=mixed_precision, is_main_process=rank == 0,
        device=torch.device("cpu"),
    )
    fsdp2_apply_ac(own, model)
    assert fsdp2_prepare_model(own, model) is model
    assert all(isinstance(p, DTensor) for p in model.parameters())
    assert isinstance(model.trunk.h[0], FSDPModule) and not isinstance(model.q1, FSDPModule)


check("copies", filled(value_model()).train(), shard)
behavior, model = lora_model()
check("adapters", model.train(), shard, behavior)
behavior, model = lora_model()
check("accelerate", model.train(), shard_as_accelerate, behavior)
behavior, model = lora_model()
check("ddp", model.train(), lambda model: None, behavior)

# Mixed precision as accelerate sets it up: the computation is in bfloat16, its data and its loss are not.
model = lora_model()[1].train()
exact = model(**collate(picked[rank::2]), count=count)["loss"]
shard_as_accelerate(model, "bf16")
seen = {{}}
model.register_forward_pre_hook(lambda _, args, given: seen.update(given), with_kwargs=True)
model.q1.register_forward_pre_hook(lambda _, args: seen.update(hidden=args[0]))
loss = model(**collate(picked[rank::2]), count=count)["loss"]
loss.backward()
assert seen["hidden"].dtype == torch.bfloat16, seen["hidden"].dtype
for name in ("rewards", "discounts", "weights", "count"):
    assert seen[name].dtype == torch.float32, (name, seen[name].dtype)
assert loss.dtype == torch.float32 and 0 < abs(loss - exact) < 0.05 * exact, (loss, exact)
assert all(p.grad.dtype == torch.float32 for p in model.parameters() if p.requires_grad)
print("equal")
torch.distributed.barrier()
torch.distributed.destroy_process_group()
"""


def test_two_processes_with_parts_learn_what_one_learns(tmp_path: Path) -> None:
    """One step: FSDP2 with copies, with adapters, and wrapped by accelerate's own functions; DDP with adapters."""
    script = tmp_path / "parts.py"
    script.write_text(PARTS.format(tests=str(Path(__file__).parent), config=str(CONFIGS / "fsdp2.yaml")))
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc_per_node", "2", str(script)]
    done = subprocess.run(command, capture_output=True, text=True, env={**os.environ, "OMP_NUM_THREADS": "1"})
    assert done.returncode == 0, done.stderr[-4000:]
    assert done.stdout.count("equal") == 2


def test_weights_in_bfloat16_can_be_trained() -> None:
    """As DeepSpeed keeps them: a step and a move of the targets, without an error and with a finite loss."""
    from test_adapters import batch, filled
    from test_ilql import value_model

    model = filled(value_model()).to(torch.bfloat16).train()
    before = {name: tensor.clone() for name, tensor in model.slow_trunk.state_dict().items()}
    loss = model(**batch())["loss"]
    loss.backward()
    assert torch.isfinite(loss) and loss.dtype == torch.float32
    torch.optim.SGD([p for p in model.parameters() if p.requires_grad], lr=0.1).step()
    model.move_targets(0.1, seed=1)
    assert any(not torch.equal(tensor, before[name]) for name, tensor in model.slow_trunk.state_dict().items())


def test_the_trainer_hands_data_over_in_float32(tmp_path: Path) -> None:
    """Under DeepSpeed too, where `Trainer` turns all inputs into the type of the weights."""
    from test_ilql import data, train

    trainer = train(tmp_path, data(number=2), steps=1)
    assert trainer.args.ddp_find_unused_parameters is False
    trainer.is_deepspeed_enabled = True
    found = trainer._prepare_inputs({"discounts": torch.tensor([0.99]), "more": [torch.tensor([1])]})
    assert found["discounts"].dtype == torch.float32 and found["more"][0].tolist() == [1]


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("ddp", DistributedType.MULTI_GPU),
        ("fsdp2", DistributedType.FSDP),
        ("zero2", DistributedType.DEEPSPEED),
        ("zero3", DistributedType.DEEPSPEED),
    ],
)
def test_accelerate_reads_the_settings(name: str, kind: DistributedType) -> None:
    """Its own parser refuses unknown keys at the top; those below, which it would pass over, are options of launch."""
    config = load_config_from_file(str(CONFIGS / f"{name}.yaml"))
    assert config.distributed_type == kind and config.mixed_precision == "bf16" and not config.use_cpu
    options = {action.dest for action in launch_command_parser()._actions}
    assert set(config.fsdp_config) | set(config.deepspeed_config) <= options
    assert bool(config.fsdp_config) == (kind == DistributedType.FSDP)
    assert config.deepspeed_config.get("zero_stage") == {"zero2": 2, "zero3": 3}.get(name)


def test_the_settings_of_fsdp_are_those_of_version_2(monkeypatch: pytest.MonkeyPatch) -> None:
    """Read the way that accelerate's launcher hands them to its processes: by the environment."""
    from accelerate.utils import FullyShardedDataParallelPlugin
    from test_ilql import value_model

    for key, value in load_config_from_file(str(CONFIGS / "fsdp2.yaml")).fsdp_config.items():
        monkeypatch.setenv(key.upper(), str(value).lower() if isinstance(value, bool) else str(value))
    plugin = FullyShardedDataParallelPlugin()
    assert plugin.fsdp_version == 2 and plugin.reshard_after_forward is True and plugin.activation_checkpointing
    model = value_model()
    plugin.set_auto_wrap_policy(model)
    assert plugin.auto_wrap_policy.keywords["transformer_layer_cls"] == {type(model.trunk.h[0])}


def test_the_settings_are_all_installed() -> None:
    """Each file is in the list of package data, and there is none that no test reads."""
    assert {path.stem for path in CONFIGS.iterdir()} == {"ddp", "fsdp2", "zero2", "zero3"}
    assert "trainers = configs/*.yaml" in (CONFIGS.parent.parent / "setup.cfg").read_text()
