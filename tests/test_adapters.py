"""LoRA for value methods: one set of weights does what three copies did, and stays what it was."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import pytest
import torch
from test_ilql import TOKENIZER, data, language_model, train, weights
from tiny_models import maze_episodes
from transformers import AutoModelForCausalLM
from transformers.pytorch_utils import Conv1D
from typer.testing import CliRunner

from env_servers.play import episode_starts, play
from env_servers.policy import Context
from env_servers.tasks import load_task
from trainers.adapters import (
    SLOW,
    VALUE,
    LoraSettings,
    activate,
    active,
    is_of_adapter,
    lora_settings,
    state_without_adapters,
)
from trainers.bc import train_bc
from trainers.cli import app
from trainers.ilql import ILQLModel, ValueConfig, ValueTrainer
from trainers.load import PolicyRecord, load_policy, save_policy
from trainers.mc import MCModel
from trainers.policy import Sampling
from trainers.transitions import transition_collator
from trainers.value_policy import ValuePolicy
from trainers.value_training import ValueRun, train_values
from trainers.values import HeadSettings, ValueModel, lora_trunk, trunk_of

torch.set_num_threads(1)
RANK, ALPHA = 4, 12.0
SETTINGS = LoraSettings(RANK, ALPHA)
KINDS = ("gpt2", "llama", "qwen")
LAYERS = {"gpt2": 2 * 4, "llama": 2 * 7, "qwen": 2 * 7}  # linear layers in two blocks


def filled(module: Any, scale: float = 0.3) -> Any:
    """The module, with numbers in what begins at 0: adapters and heads without effect would hide mistakes."""
    torch.manual_seed(5)
    for name, parameter in module.named_parameters():
        if (is_of_adapter(name) or name.startswith(("q1.", "q2.", "v.", "slow_head"))) and not parameter.any():
            torch.nn.init.normal_(parameter.data, std=scale)
    return module


def lora_model(kind: str = "gpt2", **options: Any) -> tuple[Any, ILQLModel]:
    """A language model and the values on top of it; `value` and `slow` differ, both with effect."""
    model = language_model(kind)
    torch.manual_seed(1)
    return model, filled(ILQLModel(lora_trunk(model, SETTINGS), HeadSettings(bias=-1.0), **options))


def lora_layers(trunk: Any) -> dict[str, Any]:
    return {name: module for name, module in trunk.named_modules() if hasattr(module, "lora_A")}


def merged(kind: str, trunk: Any, adapter: str) -> Any:
    """A plain body with alpha / rank B A added to its weights, by hand."""
    body = trunk_of(language_model(kind))
    with torch.no_grad():
        for name, layer in lora_layers(trunk).items():
            added = ALPHA / RANK * layer.lora_B[adapter].weight @ layer.lora_A[adapter].weight
            plain = body.get_submodule(name)
            plain.weight += added.T if isinstance(plain, Conv1D) else added
    return body


def batch(number: int = 3) -> dict[str, torch.Tensor]:
    rows = data(number=number)
    return transition_collator(TOKENIZER.pad_token_id)([rows[0], rows[len(rows) // 2], rows[len(rows) - 1]])


def near(one: torch.Tensor, other: torch.Tensor) -> bool:
    """Within 1e-5 of the largest number, where that is above 1."""
    return bool((one - other).abs().max() <= 1e-5 * max(1.0, float(other.abs().max())))


def storages(*modules: Any) -> dict[int, int]:
    """Numbers held by each distinct storage of the modules' parameters."""
    found = {}
    for module in modules:
        for parameter in module.parameters():
            storage = parameter.untyped_storage()
            found[storage.data_ptr()] = storage.nbytes() // parameter.element_size()
    return found


@pytest.mark.parametrize("kind", KINDS)
def test_an_adapter_is_the_model_with_merged_weights(kind: str) -> None:
    model, values = lora_model(kind)
    plain = language_model(kind).eval()
    assert len(lora_layers(values.trunk)) == LAYERS[kind]
    values.eval()
    inputs = {name: batch()[name] for name in ("input_ids", "attention_mask")}
    with torch.no_grad():
        expected = {name: merged(kind, values.trunk, name).eval() for name in (VALUE, SLOW)}
        for adapter, body in expected.items():
            with active(values.trunk, adapter):
                found = values.trunk(**inputs).last_hidden_state
            assert torch.allclose(found, body(**inputs).last_hidden_state, atol=1e-4), adapter
        assert not torch.allclose(*(body(**inputs).last_hidden_state for body in expected.values()), atol=1e-2)
        with active(values.trunk, None):
            assert torch.equal(model.eval()(**inputs).logits, plain(**inputs).logits), "off, not a bit is another"
        assert torch.allclose(
            values.trunk(**inputs).last_hidden_state, expected[VALUE](**inputs).last_hidden_state, atol=1e-4
        ), "at rest it is the value trunk again"


@pytest.mark.parametrize("kind", KINDS)
def test_loss_and_gradients_are_those_of_three_copies(kind: str) -> None:
    """The adapters' gradients follow from those of the whole weights: dA = s B^T dW, dB = s dW A^T."""
    _, values = lora_model(kind)
    copies = ILQLModel(merged(kind, values.trunk, VALUE), HeadSettings(bias=-1.0))
    copies.slow_trunk = merged(kind, values.trunk, SLOW)
    for name in ("q1", "q2", "v", "slow_head1", "slow_head2"):
        getattr(copies, name).load_state_dict(getattr(values, name).state_dict())
    inputs = batch()
    one, other = values.train()(**inputs), copies.train()(**inputs)
    assert one["loss"].item() == pytest.approx(other["loss"].item(), abs=1e-5)
    assert one["values/target_q"].item() == pytest.approx(other["values/target_q"].item(), abs=1e-4)
    one["loss"].backward()
    other["loss"].backward()
    scale = ALPHA / RANK
    for name, layer in lora_layers(values.trunk).items():
        plain = copies.trunk.get_submodule(name)
        whole = plain.weight.grad.T if isinstance(plain, Conv1D) else plain.weight.grad
        a, b = layer.lora_A[VALUE].weight, layer.lora_B[VALUE].weight
        assert near(a.grad, scale * b.detach().T @ whole), name
        assert near(b.grad, scale * whole @ a.detach().T), name
        assert layer.lora_A[SLOW].weight.grad is None and layer.lora_B[SLOW].weight.grad is None
    for name in ("q1", "q2", "v"):
        for own, copied in zip(getattr(values, name).parameters(), getattr(copies, name).parameters(), strict=True):
            assert near(own.grad, copied.grad), name


def test_activation_checkpointing_changes_nothing() -> None:
    """The recomputation in the backward pass is by the adapter that learns, though `slow` was on since."""
    inputs, found = batch(), []
    for checkpointing in (False, True):
        values = lora_model()[1].train()
        if checkpointing:
            values.activation_checkpointing_enable()
        values(**inputs)["loss"].backward()
        found.append({n: p.grad for n, p in values.trunk.named_parameters() if p.grad is not None})
    assert len(found[0]) == 2 * LAYERS["gpt2"] and found[0].keys() == found[1].keys()
    for name, gradient in found[0].items():
        assert gradient.any() and torch.allclose(gradient, found[1][name], atol=1e-6), name


@pytest.mark.parametrize("kind", KINDS)
def test_training_moves_the_adapters_and_nothing_else(tmp_path: Path, kind: str) -> None:
    """Two steps in two parts each: `slow` follows once a step, and the behaviour policy stays, bit for bit."""
    model, values = lora_model(kind)
    before = copy.deepcopy(values.state_dict())
    inputs = {name: batch()[name] for name in ("input_ids", "attention_mask")}
    with torch.no_grad(), active(values.trunk, None):
        logits = model.eval()(**inputs).logits
    trainer = train(tmp_path, data(), values, batch=8, parts=2, steps=1)
    values = trainer.accelerator.unwrap_model(trainer.model)
    after = values.state_dict()
    trainable = {name for name, parameter in values.named_parameters() if parameter.requires_grad}
    assert {name for name in trainable if name.startswith("trunk.")} == {n for n in after if is_of_adapter(n, VALUE)}
    for name, tensor in after.items():
        if is_of_adapter(name, SLOW):
            own = after[name.replace(f".{SLOW}.", f".{VALUE}.")]
            assert torch.allclose(tensor, before[name] + 0.1 * (own - before[name]), atol=1e-7), name
        elif name.startswith("trunk.") and name not in trainable:
            assert torch.equal(tensor, before[name]), name
        elif is_of_adapter(name, VALUE):
            assert not torch.equal(tensor, before[name]), name
    with torch.no_grad(), active(values.trunk, None):
        assert torch.equal(model.eval()(**inputs).logits, logits)


def test_mc_has_no_slow_adapter(tmp_path: Path) -> None:
    model = language_model()
    values = filled(MCModel(lora_trunk(model, SETTINGS), HeadSettings()))
    before = copy.deepcopy(values.state_dict())
    arguments = ValueConfig(
        output_dir=str(tmp_path), per_device_train_batch_size=8, max_steps=2, learning_rate=1e-2, report_to="none",
        use_cpu=True, disable_tqdm=True, save_strategy="no",
    )  # fmt: skip
    collate = transition_collator(TOKENIZER.pad_token_id)
    ValueTrainer(model=values, args=arguments, train_dataset=data(), data_collator=collate).train()
    changed = {name for name, tensor in values.state_dict().items() if not torch.equal(tensor, before[name])}
    assert not any(is_of_adapter(name, SLOW) for name in before)
    assert {name for name in changed if name.startswith("trunk.")} == {n for n in before if is_of_adapter(n, VALUE)}


def test_a_resumed_run_ends_with_the_same_weights(tmp_path: Path) -> None:
    rows = data()
    whole = train(tmp_path / "whole", rows, lora_model()[1], steps=4)
    train(tmp_path / "cut", rows, lora_model()[1], steps=4, save_strategy="steps", save_steps=2)
    checkpoint = str(tmp_path / "cut/checkpoint-2")
    resumed = train(tmp_path / "cut", rows, lora_model()[1], steps=4, save_strategy="no", resume=checkpoint)
    assert torch.equal(weights(whole), weights(resumed)), "the slow adapter included"


def test_the_weights_are_in_memory_once() -> None:
    """Language model and ILQL together: the model, two adapters, and heads; with copies, the body three times."""
    model, values = lora_model()
    body = sum(parameter.numel() for parameter in language_model().base_model.parameters())
    # In two blocks of width 32: c_attn 32 -> 96, c_proj 32 -> 32, c_fc 32 -> 128, c_proj 128 -> 32.
    adapter = 2 * RANK * ((32 + 96) + (32 + 32) + (32 + 128) + (128 + 32))
    vocabulary = len(TOKENIZER)
    layer = 32 * 32 + 32
    q, v = layer + 32 * vocabulary + vocabulary, layer + 32 + 1
    assert sum(storages(model, values).values()) == body + 2 * adapter + 4 * q + v, "the head is tied to the embedding"
    full = language_model()
    copies = ILQLModel(trunk_of(full), HeadSettings())
    assert sum(storages(full, copies).values()) == 3 * body + 4 * q + v


def contexts() -> list[Context]:
    import random

    spec, turns = load_task("maze_po").spec, maze_episodes("maze_po", 1, "random")[0].turns
    return [Context(spec, turns[:n], turns[n].observation, random.Random(n), {}) for n in (0, 3, 4)]


@pytest.mark.parametrize("kind", ["gpt2", "llama"])
def test_what_is_saved_acts_the_same(tmp_path: Path, kind: str) -> None:
    """Saved, loaded, and against two models that share nothing; the folder is a plain model's."""
    model, trained = lora_model(kind)
    record = PolicyRecord(
        algorithm="ilql", task="maze_po", task_version="1.0", rendering="plain", memory=4, max_length=160,
        action_room=8, dataset={"source": "lmrl/maze_po", "revision": None}, kind="values",
        values={**trained.settings._asdict(), "beta": 3.0, "q_heads": 2, "lora": SETTINGS._asdict()},
    )  # fmt: skip
    acting = trained.acting_state()
    save_policy(tmp_path, model, TOKENIZER, record, acting, state_without_adapters(model))
    assert {name.split(".")[0] for name in acting} == {"trunk", "q1", "q2"}
    assert sum(name.startswith("trunk.") for name in acting) == 2 * LAYERS[kind]

    sampling = Sampling(max_new_tokens=5)
    policy = load_policy(str(tmp_path), task="maze_po", device="cpu", sampling=sampling)
    assert isinstance(policy, ValuePolicy)
    apart = ValueModel(merged(kind, trained.trunk, VALUE), HeadSettings(), 2)
    apart.q1, apart.q2 = trained.q1, trained.q2
    options: dict[str, Any] = {"name": "x", "sampling": sampling, "max_length": 160, "memory": 4, "action_room": 8}
    spec = load_task("maze_po").spec
    expected = ValuePolicy(language_model(kind), TOKENIZER, spec, values=apart, beta=3.0, **options)
    same = ValuePolicy(model, TOKENIZER, spec, values=trained, beta=3.0, **options)
    played = [p.act(contexts()) for p in (policy, same, expected)]
    for loaded, before, other in zip(*played, strict=True):
        assert loaded.token_ids == before.token_ids == other.token_ids
        assert loaded.logprobs == pytest.approx(before.logprobs, abs=1e-6)
        assert loaded.logprobs == pytest.approx(other.logprobs, abs=1e-4)
    loaded_state = policy.values.acting_state()
    assert loaded_state.keys() == acting.keys()
    assert all(torch.equal(tensor, loaded_state[name]) for name, tensor in acting.items()), "not a bit is another"

    alone = AutoModelForCausalLM.from_pretrained(tmp_path)
    ids = torch.tensor([[3, 4, 5]])
    with torch.no_grad():
        logits = language_model(kind).eval()(ids).logits
        assert torch.equal(alone(ids).logits, logits)
        assert torch.equal(policy.model(ids).logits, logits), "a loaded policy's model is the behaviour policy"
    assert sum(storages(policy.model, policy.values).values()) == sum(
        tensor.numel() for tensor in [*acting.values(), *alone.parameters()] if tensor.is_floating_point()
    )


def test_files_that_do_not_fit_are_refused(tmp_path: Path) -> None:
    _, values = lora_model()
    state = values.acting_state()
    fresh = ValueModel(lora_trunk(language_model(), SETTINGS), HeadSettings(), 2)
    fresh.load_acting_state(state)
    name = next(name for name in state if is_of_adapter(name))
    with pytest.raises(RuntimeError, match="1 weights are missing, 0 unknown: trunk"):
        fresh.load_acting_state({other: tensor for other, tensor in state.items() if other != name})
    with pytest.raises(RuntimeError, match="weights are missing"):
        ValueModel(trunk_of(language_model()), HeadSettings(), 2).load_acting_state(state)


def test_settings_from_options() -> None:
    assert lora_settings(None) is None and lora_settings(0) is None
    assert lora_settings(16) == LoraSettings(16, 32.0, "all-linear")
    assert lora_settings(8, 4.0, "c_attn") == LoraSettings(8, 4.0, "c_attn")
    with pytest.raises(ValueError, match=r"lora_alpha is 8.0, but there is no lora_rank"):
        lora_settings(None, 8.0)
    with pytest.raises(ValueError, match=r"lora_targets is 'c_attn', but there is no lora_rank"):
        lora_settings(0, None, "c_attn")
    with pytest.raises(ValueError, match="lora_rank is -1; it must be above 0"):
        lora_settings(-1)
    with pytest.raises(ValueError, match=r"lora_alpha is 0\.0; it must be above 0"):
        lora_settings(4, 0.0)


def test_options_without_a_rank_are_refused_before_anything_is_read(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"lora_alpha is 8\.0, but there is no lora_rank"):
        train_values(ValueRun("ilql", "maze", "nowhere", None, "tiny", lora_alpha=8.0), tmp_path)
    with pytest.raises(ValueError, match="lora_targets is 'c_attn', but there is no lora_rank"):
        train_bc("maze", "nowhere", tmp_path, lora_targets="c_attn")
    assert not any(tmp_path.iterdir())


def test_layers_are_chosen_by_name() -> None:
    trunk = lora_trunk(language_model("llama"), LoraSettings(2, 4.0, "q_proj, v_proj"))
    assert {name.rpartition(".")[2] for name in lora_layers(trunk)} == {"q_proj", "v_proj"}
    with pytest.raises(ValueError, match=r"lora_targets has x_proj, .*allowed: all-linear, or of down_proj, .*v_proj"):
        lora_trunk(language_model("llama"), LoraSettings(2, 4.0, "q_proj,x_proj"))
    model = language_model()
    lora_trunk(model, SETTINGS)
    with pytest.raises(ValueError, match="GPT2Model has adapters already"):
        lora_trunk(model, SETTINGS)


def test_no_dropout_is_left_and_switching_survives_an_error() -> None:
    model = language_model()
    trunk = lora_trunk(model, SETTINGS).train()
    ids = torch.tensor([[3, 4, 5, 6]])
    assert torch.equal(trunk(ids).last_hidden_state, trunk(ids).last_hidden_state)
    activate(trunk, None)
    with pytest.raises(KeyError), active(trunk, VALUE):
        raise KeyError
    assert all(layer.disable_adapters for layer in lora_layers(trunk).values())
    assert all(p.requires_grad == is_of_adapter(name) for name, p in trunk.named_parameters())


def test_the_commands_learn_save_and_play(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """BC and ILQL with adapters as commands; the first ends as a plain model, the second beside its first policy."""
    from hub_datasets.build import build
    from hub_datasets.plan import make_plan

    monkeypatch.chdir(tmp_path)
    build(make_plan("maze", episodes={"train": 8}), tmp_path / "data", workers=1)

    def lmrl(*words: str) -> str:
        done = CliRunner().invoke(app, [*words, "--task", "maze", "--dataset", "data", "--steps", "2"])
        assert done.exit_code == 0, (done.output, done.exception)
        return done.output

    lmrl("bc", "--init", "tiny", "--batch-size", "16", "--output", "first")
    lmrl("bc", "--init", "first", "--batch-size", "16", "--lr", "0.1", "--lora-rank", "2", "--output", "bc")
    first, cloned = (AutoModelForCausalLM.from_pretrained(name).state_dict() for name in ("first", "bc"))
    assert first.keys() == cloned.keys()
    changed = {name for name in first if not torch.equal(first[name], cloned[name])}
    assert changed and all(name.endswith(("c_attn.weight", "c_proj.weight", "c_fc.weight")) for name in changed)
    assert "--lora-rank 2 " in Path("bc/README.md").read_text()

    ilql = ("ilql", "--init", "bc", "--batch-size", "16", "--lora-rank", "4", "--lora-targets", "c_attn,c_fc")
    lmrl(*ilql, "--lr", "0.01", "--output", "ilql")
    kept = AutoModelForCausalLM.from_pretrained("ilql").state_dict()
    assert all(torch.equal(kept[name], cloned[name]) for name in cloned), "the behaviour policy is as it was"
    run, record = (json.loads(Path("ilql", name).read_text()) for name in ("run.json", "policy.json"))
    assert (run["lora_rank"], run["lora_alpha"], run["lora_targets"]) == (4, None, "c_attn,c_fc")
    assert record["values"]["lora"] == {"rank": 4, "alpha": 8.0, "targets": "c_attn,c_fc"} and record["format"] == 2
    assert "--lora-rank 4 --lora-targets c_attn,c_fc" in Path("ilql/README.md").read_text()
    policy = load_policy("ilql", task="maze", device="cpu")
    played = list(play("maze", policy, episode_starts("maze", "test", range(1))))
    assert len(played) == 1 and len(played[0].trajectory.turns) > 0
    assert "policy saved in ilql" in lmrl(*ilql, "--lr", "0.01", "--output", "ilql"), "finished, so nothing is done"
