"""ILQL and MC returns as trainers: what must not change the result, and that the right thing is learned."""

from __future__ import annotations

import copy
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from datasets import Dataset
from tiny_models import maze_episodes, plain_tokenizer
from transformers import GPT2Config, GPT2LMHeadModel, LlamaConfig, LlamaForCausalLM, Qwen2Config, Qwen2ForCausalLM

from env_servers.tasks import load_task
from trainers.ilql import ILQLConfig, ILQLModel, ILQLTrainer, ValueConfig, ValueTrainer
from trainers.mc import MCModel
from trainers.tokens import Renderer
from trainers.transitions import Discounting, build_transitions, transition_collator
from trainers.values import HeadSettings, trunk_of

torch.set_num_threads(1)
TOKENIZER = plain_tokenizer()


def language_model(kind: str = "gpt2") -> Any:
    torch.manual_seed(0)
    size = {
        "vocab_size": len(TOKENIZER),
        "hidden_size": 32,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "num_key_value_heads": 1,
    }
    if kind == "gpt2":
        ends = {"bos_token_id": None, "eos_token_id": TOKENIZER.eos_token_id}
        config = GPT2Config(vocab_size=len(TOKENIZER), n_embd=32, n_layer=2, n_head=2, n_positions=256, **ends)
        return GPT2LMHeadModel(config)
    if kind == "llama":
        return LlamaForCausalLM(LlamaConfig(**size, intermediate_size=48, max_position_embeddings=256))
    return Qwen2ForCausalLM(
        Qwen2Config(**size, intermediate_size=48, max_position_embeddings=256, tie_word_embeddings=True)
    )


def value_model(kind: str = "gpt2", **options: Any) -> ILQLModel:
    trunk = trunk_of(language_model(kind))
    torch.manual_seed(1)
    return ILQLModel(trunk, HeadSettings(bias=-1.0), **options)


def data(task: str = "maze_po", number: int = 6, memory: int | None = 4) -> Dataset:
    renderer = Renderer(TOKENIZER, load_task(task).spec, memory=memory, max_length=160)
    return build_transitions(maze_episodes(task, number), renderer, Discounting())


def train(
    folder: Path, rows: Dataset, model: Any = None, *, batch: int = 8, parts: int = 1, steps: int = 4, **more: Any
):  # type: ignore[no-untyped-def]
    resume, save_strategy = more.pop("resume", None), more.pop("save_strategy", "no")
    more = {"learning_rate": 1e-2, "target_rate": 0.1, "seed": 1, **more}
    arguments = ILQLConfig(
        output_dir=str(folder), per_device_train_batch_size=batch // parts, gradient_accumulation_steps=parts,
        max_steps=steps, logging_steps=1, report_to="none", use_cpu=True, disable_tqdm=True,
        save_strategy=save_strategy, **more,
    )  # fmt: skip
    trainer = ILQLTrainer(
        model or value_model(), arguments, train_dataset=rows, data_collator=transition_collator(TOKENIZER.pad_token_id)
    )
    trainer.train(resume_from_checkpoint=resume)
    return trainer


def weights(trainer: Any) -> torch.Tensor:
    model = trainer.accelerator.unwrap_model(trainer.model)
    return torch.cat([parameter.detach().flatten() for _, parameter in sorted(model.named_parameters())])


def test_accumulation_does_not_change_the_result(tmp_path: Path) -> None:
    """Ragged rows, so that the parts have different numbers of action tokens."""
    rows = data()
    whole = train(tmp_path, rows, batch=8, parts=1)
    parts = train(tmp_path, rows, batch=8, parts=4)
    assert torch.allclose(weights(whole), weights(parts), atol=5e-5), "steps are of 1e-2"
    losses = [[log["loss"] for log in t.state.log_history if "loss" in log] for t in (whole, parts)]
    assert losses[0] == pytest.approx(losses[1], abs=1e-4)


def test_a_resumed_run_ends_with_the_same_weights(tmp_path: Path) -> None:
    rows = data()
    whole = train(tmp_path / "whole", rows, steps=6)
    train(tmp_path / "cut", rows, steps=6, save_strategy="steps", save_steps=3)
    resumed = train(tmp_path / "cut", rows, steps=6, save_strategy="no", resume=str(tmp_path / "cut/checkpoint-3"))
    assert torch.equal(weights(whole), weights(resumed)), "the targets included"


def test_targets_move_once_for_each_step_of_the_optimizer(tmp_path: Path) -> None:
    model = value_model()
    before = copy.deepcopy(model.slow_trunk.state_dict())
    trainer = train(tmp_path, data(), model, batch=8, parts=4, steps=1)
    after = trainer.accelerator.unwrap_model(trainer.model)
    for name, parameter in after.trunk.named_parameters():
        expected = before[name] + 0.1 * (parameter - before[name])
        assert torch.allclose(after.slow_trunk.get_parameter(name), expected, atol=1e-6), name
    assert not any(parameter.requires_grad for parameter in after.slow_head1.parameters())


@pytest.mark.parametrize("kind", ["gpt2", "llama", "qwen"])
def test_padding_and_rows_added_change_nothing(kind: str) -> None:
    """The loss of two rows together is the mean over tokens of their losses apart; gradients add up alike."""
    rows = data(number=2)
    collate = transition_collator(TOKENIZER.pad_token_id)
    model = value_model(kind)
    picked = [rows[0], rows[len(rows) - 1], rows[len(rows) // 2]]
    together = model(**collate(picked))["loss"]
    count = sum(len(row["places"]) for row in picked)
    apart = sum(model(**collate([row]), count=torch.tensor(float(count)))["loss"] for row in picked)
    assert together.item() == pytest.approx(apart.item(), abs=1e-5)
    gradients = [
        torch.autograd.grad(loss, list(model.trunk.parameters()), allow_unused=True) for loss in (together, apart)
    ]
    for one, other in zip(*gradients, strict=True):
        assert (one is None and other is None) or torch.allclose(one, other, atol=1e-5)


def test_rows_of_weight_zero_have_no_gradient() -> None:
    rows = data(number=2)
    collate = transition_collator(TOKENIZER.pad_token_id)
    model = value_model()
    model(**collate([{**rows[0], "weight": 0.0}]))["loss"].backward()
    assert all(p.grad is None or not p.grad.any() for p in model.parameters())


def test_gradient_checkpointing_changes_nothing() -> None:
    rows, collate = data(number=2), transition_collator(TOKENIZER.pad_token_id)
    gradients = []
    for checkpointing in (False, True):
        model = value_model().train()
        if checkpointing:
            model.activation_checkpointing_enable()
        model(**collate([rows[0], rows[1]]))["loss"].backward()
        gradients.append([p.grad for p in model.trunk.parameters()])
    for one, other in zip(*gradients, strict=True):
        assert torch.allclose(one, other, atol=1e-6)


def test_mc_learns_the_returns(tmp_path: Path) -> None:
    """On one batch that it can learn by heart, without the conservative term, Q goes to the returns."""
    rows = data(number=1)
    model = MCModel(trunk_of(language_model()), HeadSettings(), cql_weight=0.0)
    arguments = ValueConfig(
        output_dir=str(tmp_path), per_device_train_batch_size=len(rows), max_steps=150, learning_rate=3e-3,
        logging_steps=50, report_to="none", use_cpu=True, disable_tqdm=True, save_strategy="no",
    )  # fmt: skip
    collate = transition_collator(TOKENIZER.pad_token_id)
    trainer = ValueTrainer(model=model, args=arguments, train_dataset=rows, data_collator=collate)
    trainer.train()
    batch = collate([rows[number] for number in range(len(rows))])
    with torch.no_grad():
        hidden = model.eval().hidden(model.trunk, batch["input_ids"], batch["attention_mask"])
        q = model.q1(hidden[batch["states"]], batch["tokens"])
    assert (q - batch["returns"]).abs().mean() < 0.05 * (batch["returns"].max() - batch["returns"].min())


def test_a_run_that_diverges_stops_and_says_so(tmp_path: Path) -> None:
    with pytest.raises(FloatingPointError, match=r"the loss is (nan|inf) after \d steps: training has diverged"):
        train(tmp_path, data(), max_grad_norm=0.0, steps=9, optim="sgd", learning_rate=1e20)


DISTRIBUTED = """
import sys, torch
sys.path.insert(0, {tests!r})
from pathlib import Path
from test_ilql import data, train, weights
trainer = train(Path({folder!r}), data(), batch={batch}, steps=3, learning_rate=1e-3)
if trainer.is_world_process_zero():
    torch.save((weights(trainer), [log["loss"] for log in trainer.state.log_history if "loss" in log]), {result!r})
# In order: a process that leaves while its threads still talk to the other is aborted.
if torch.distributed.is_initialized():
    torch.distributed.barrier()
    torch.distributed.destroy_process_group()
"""


def test_two_processes_are_one_with_twice_the_batch(tmp_path: Path) -> None:
    found = []
    for processes, batch in ((1, 8), (2, 4)):
        result = tmp_path / f"{processes}.pt"
        script = tmp_path / f"{processes}.py"
        values = {"tests": str(Path(__file__).parent), "folder": str(tmp_path), "batch": batch, "result": str(result)}
        script.write_text(DISTRIBUTED.format(**values))
        command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc_per_node", str(processes)]
        environment = {**os.environ, "OMP_NUM_THREADS": "1"}
        done = subprocess.run([*command, str(script)], capture_output=True, text=True, env=environment)
        assert done.returncode == 0, done.stderr[-3000:]
        found.append(torch.load(result))
    (one, one_losses), (two, two_losses) = found
    assert torch.allclose(one, two, atol=1e-5)
    assert one_losses == pytest.approx(two_losses, abs=1e-5)
