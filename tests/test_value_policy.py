"""Acting by values: what is drawn from, saved form, and a policy trained, measured and read back from a Hub.

This file is also a script: `python test_value_policy.py <repository>` prints how a policy there plays.
"""

from __future__ import annotations

import json
import random
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from hub_server import HubServer, client_environment
from tiny_models import maze_episodes, plain_tokenizer

from env_servers.policy import Context
from env_servers.tasks import load_task
from eval_harness.cli import _parse_betas
from eval_harness.run import run
from trainers.bc import train_bc
from trainers.load import PolicyRecord, find_policy, load_body, load_policy, save_policy
from trainers.policy import LanguageModelPolicy, Sampling
from trainers.scratch import new_model
from trainers.value_policy import MARGIN, ValuePolicy
from trainers.value_training import ValueRun, train_values
from trainers.values import HeadSettings, ValueModel, trunk_of

torch.set_num_threads(1)
TOKENIZER = plain_tokenizer()
SPEC = load_task("maze_po").spec
GREEDY = Sampling(temperature=0, max_new_tokens=6)


def models(token_ids: list[int] | None = None, q_heads: int = 2) -> tuple[Any, ValueModel]:
    """A behaviour policy and values with random weights, the heads' included."""
    behavior = new_model("tiny", TOKENIZER, 256, seed=0)
    torch.manual_seed(1)
    values = ValueModel(trunk_of(new_model("tiny", TOKENIZER, 256, seed=3)), HeadSettings(token_ids=token_ids), q_heads)
    for parameter in values.parameters():
        if not parameter.any():
            torch.nn.init.normal_(parameter, std=0.5)
    return behavior, values


def contexts(number: int = 5) -> list[Context]:
    """Of different lengths, so that a batch is padded."""
    turns = maze_episodes("maze_po", 1, "random")[0].turns
    return [Context(SPEC, turns[:n], turns[n].observation, random.Random(n), {}) for n in range(0, 2 * number, 2)]


def plain_logits(behavior: Any, values: ValueModel, ids: list[int], beta: float) -> torch.Tensor:
    """The same from whole texts, one at a time, without caches."""
    with torch.no_grad():
        logits = behavior(torch.tensor([ids])).logits[0, -1]
        hidden = values.trunk(torch.tensor([ids])).last_hidden_state[:, -1]
        q = torch.minimum(values.q1(hidden), values.q2(hidden))[0] if values.q2 is not None else values.q1(hidden)[0]
        known = values.settings.token_ids
        if known is None:
            return logits + beta * q
        added = torch.full_like(logits, float(beta * q.min() - MARGIN))
        added[torch.tensor(known)] = beta * q
        return logits + added


@pytest.mark.parametrize(("token_ids", "q_heads"), [(None, 2), (None, 1), ([5, 9, 40, 41, 90, 200], 2)])
def test_caches_and_padding_change_nothing(token_ids: list[int] | None, q_heads: int) -> None:
    behavior, values = models(token_ids, q_heads)
    policy = ValuePolicy(behavior, TOKENIZER, SPEC, values=values, beta=2.5, name="x", sampling=GREEDY, max_length=200)
    for context, action in zip(contexts(), policy.act(contexts()), strict=True):
        ids = policy.renderer.prompt_ids(context.history, context.observation)
        assert action.prompt_ids == tuple(ids)
        for token in action.token_ids or ():
            assert token == int(plain_logits(behavior, values, ids, 2.5).argmax())
            ids = [*ids, token]


def test_sampled_tokens_carry_their_log_probabilities() -> None:
    behavior, values = models()
    sampling = Sampling(max_new_tokens=5)
    policy = ValuePolicy(
        behavior, TOKENIZER, SPEC, values=values, beta=1.5, name="x", sampling=sampling, max_length=200
    )
    for action in policy.act(contexts()):
        ids = list(action.prompt_ids or ())
        for token, logprob in zip(action.token_ids or (), action.logprobs or (), strict=True):
            expected = plain_logits(behavior, values, ids, 1.5).log_softmax(-1)[token]
            assert logprob == pytest.approx(float(expected), abs=1e-4)
            ids.append(token)


def test_without_weight_it_is_the_behavior_policy() -> None:
    behavior, values = models()
    options: dict[str, Any] = {"name": "x", "sampling": Sampling(max_new_tokens=6), "max_length": 200}
    plain = LanguageModelPolicy(behavior, TOKENIZER, SPEC, **options)
    policy = ValuePolicy(behavior, TOKENIZER, SPEC, values=values, beta=0.0, **options)
    assert [a.token_ids for a in policy.act(contexts())] == [a.token_ids for a in plain.act(contexts())]
    with pytest.raises(ValueError, match="beta is -1; allowed are 0"):
        ValuePolicy(behavior, TOKENIZER, SPEC, values=values, beta=-1, **options)


@pytest.mark.parametrize("beta", [None, 0.0, 2.5])
def test_reranking_draws_whole_actions_by_their_probability(beta: float | None) -> None:
    """Against each token's probability from whole texts; in batches of 3, so that one has 4 rows and more padding."""
    behavior, values = models([5, 9, 40, 41, 90, 200] if beta else None)
    options: dict[str, Any] = {"name": "x", "max_length": 200, "batch_size": 3}

    def policy(**sampling: Any) -> LanguageModelPolicy:
        sampling["rerank"] = True
        if beta is None:
            return LanguageModelPolicy(behavior, TOKENIZER, SPEC, sampling=Sampling(**sampling), **options)
        chosen = {"values": values, "beta": beta, "sampling": Sampling(**sampling)}
        return ValuePolicy(behavior, TOKENIZER, SPEC, **chosen, **options)

    candidates = [policy().renderer.action_ids(text) for text in SPEC.actions]
    expected = []
    for context in contexts():
        prompt = policy().renderer.prompt_ids(context.history, context.observation)
        scores = []
        for candidate in candidates:
            ids, score = list(prompt), 0.0
            for token in candidate:
                score += float(plain_logits(behavior, values, ids, beta or 0.0).log_softmax(-1)[token])
                ids.append(token)
            scores.append(score)
        expected.append(scores)
    prompts = [policy().renderer.prompt_ids(c.history, c.observation) for c in contexts()]
    found = policy()._action_scores(prompts, candidates)
    assert torch.allclose(found, torch.tensor(expected, dtype=torch.float64), atol=1e-3)
    best = [SPEC.actions[scores.index(max(scores))] for scores in expected]
    assert [action.text for action in policy(temperature=0).act(contexts())] == best
    drawn = [action for _ in range(40) for action in policy(temperature=100.0).act(contexts()[:1])]
    assert {action.text for action in drawn} == {drawn[0].text}, "the episode's generator decides"
    assert all(action.text in SPEC.actions and action.finish_reason == "stop" for action in drawn)


def test_reranking_needs_a_tasks_own_actions() -> None:
    behavior, _ = models()
    with pytest.raises(ValueError, match="a fixed set of actions, which wordle does not have"):
        LanguageModelPolicy(
            behavior, TOKENIZER, load_task("wordle").spec, name="x", sampling=Sampling(rerank=True), max_length=200
        )
    with pytest.raises(ValueError, match="leave out top_k and top_p"):
        Sampling(rerank=True, top_k=3)


def saved(folder: Path, token_ids: list[int] | None = None) -> tuple[Any, ValueModel]:
    behavior, values = models(token_ids)
    record = PolicyRecord(
        algorithm="ilql", task="maze_po", task_version="1.0", rendering="plain", memory=20, max_length=200,
        action_room=8, dataset={"source": "lmrl/maze_po", "revision": None}, kind="values",
        values={**values.settings._asdict(), "beta": 3.0, "q_heads": 2},
    )  # fmt: skip
    save_policy(folder, behavior, TOKENIZER, record, values.acting_state())
    return behavior, values


@pytest.mark.parametrize("token_ids", [None, [5, 9, 40]])
def test_what_is_saved_is_loaded(tmp_path: Path, token_ids: list[int] | None) -> None:
    behavior, values = saved(tmp_path, token_ids)
    policy = load_policy(str(tmp_path), task="maze_po", device="cpu", sampling=GREEDY)
    assert isinstance(policy, ValuePolicy) and policy.beta == 3.0
    same = ValuePolicy(behavior, TOKENIZER, SPEC, values=values, beta=3.0, name="x", sampling=GREEDY, max_length=200)
    assert [a.token_ids for a in policy.act(contexts())] == [a.token_ids for a in same.act(contexts())]
    loaded = policy.values.acting_state()
    assert all(torch.equal(tensor, loaded[name]) for name, tensor in values.acting_state().items())
    assert load_policy(str(tmp_path), task="maze_po", device="cpu", beta=7.0).beta == 7.0  # type: ignore[attr-defined]


def test_the_behavior_policy_is_loaded_by_transformers_alone(tmp_path: Path) -> None:
    from transformers import AutoModelForCausalLM

    behavior, _ = saved(tmp_path)
    again = AutoModelForCausalLM.from_pretrained(tmp_path)
    ids = torch.tensor([[3, 4, 5]])
    with torch.no_grad():
        assert torch.equal(again(ids).logits, behavior.eval()(ids).logits)


def test_values_that_do_not_fit_are_refused(tmp_path: Path) -> None:
    saved(tmp_path)
    (tmp_path / "values.safetensors").unlink()
    with pytest.raises(ValueError, match=r"values.safetensors does not fit the model beside it"):
        load_policy(str(tmp_path), task="maze_po", device="cpu")


def test_a_trunk_can_begin_as_another_policys_values(tmp_path: Path) -> None:
    """As its value trunk, not as its behaviour policy; of a policy without values it is the model's body."""
    behavior, values = saved(tmp_path)
    begun = trunk_of(load_body(find_policy(str(tmp_path)))).state_dict()
    assert begun.keys() == values.trunk.state_dict().keys()
    assert all(torch.equal(tensor, begun[name]) for name, tensor in values.trunk.state_dict().items())
    (tmp_path / "policy.json").unlink()
    begun = trunk_of(load_body(find_policy(str(tmp_path)))).state_dict()
    assert all(torch.equal(tensor, begun[name]) for name, tensor in trunk_of(behavior).state_dict().items())


def test_an_adapter_is_no_trunk(tmp_path: Path) -> None:
    saved(tmp_path)
    path = tmp_path / "policy.json"
    record = json.loads(path.read_text())
    record["values"]["lora"] = {"rank": 4, "alpha": 8, "targets": None}
    path.write_text(json.dumps(record))
    with pytest.raises(ValueError, match="are an adapter, which is no trunk of its own"):
        load_body(find_policy(str(tmp_path)))


def test_beta_of_a_policy_without_values_is_refused(tmp_path: Path) -> None:
    new_model("tiny", TOKENIZER, 256).save_pretrained(tmp_path)
    TOKENIZER.save_pretrained(tmp_path)
    with pytest.raises(ValueError, match="has no values to weigh; leave beta out"):
        load_policy(str(tmp_path), task="maze_po", device="cpu", beta=1.0)


def test_betas_on_the_command_line() -> None:
    assert _parse_betas("1,2.5,16") == [1.0, 2.5, 16.0]
    assert _parse_betas(None) == [None]
    with pytest.raises(ValueError, match="--beta is 'high'; it must be a number"):
        _parse_betas("high")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"algorithm": "q"}, "algorithm is 'q'; allowed: ilql, mc"),
        ({"trunk": "tiny", "lora_rank": 4}, "trunk is 'tiny' and lora_rank is 4; .* give one of the two"),
        ({"q_vocab": "some"}, "q_vocab is 'some'; allowed: all, dataset"),
        ({"schedule": "steep"}, "schedule is 'steep'; allowed: constant, linear, cosine"),
        ({"tau": 1.0}, "tau is 1.0; allowed are numbers between 0 and 1"),
        ({"gamma": 2.0}, "gamma is 2.0; allowed are numbers from 0 to 1"),
        ({"steps": 0}, "steps is 0; it must be above 0"),
        ({"batch_size": 10, "accumulation": 3}, "batch size 10 does not divide into 3 parts"),
    ],
)
def test_impossible_settings_are_refused(tmp_path: Path, changes: dict[str, Any], message: str) -> None:
    values = {"algorithm": "ilql", "task": "maze", "source": "x", "revision": None, "init": "tiny", **changes}
    with pytest.raises(ValueError, match=message):
        train_values(ValueRun(**values), tmp_path)


@pytest.mark.parametrize("algorithm", ["ilql", "mc"])
def test_the_cards_command_has_only_options_that_there_are(algorithm: str) -> None:
    import typer

    from trainers.cli import app

    command: Any = typer.main.get_command(app)
    known = {option for parameter in command.commands[algorithm].params for option in parameter.opts}
    told = ValueRun(algorithm, "maze", "lmrl/maze", "abc", "bc", linear_heads=True, steps=3).command().split()
    assert told[:3] == ["lmrl", "train", algorithm]
    assert {word for word in told if word.startswith("--")} <= known
    assert "--linear-heads" in told and "None" not in told and ("--tau" in told) == (algorithm == "ilql")


SCRIPT = """
import sys
from test_value_policy import main
main(sys.argv[1])
"""


def main(repository: str) -> None:
    result = run("maze", repository, episodes=20, output="runs/fresh", progress=False)
    print(json.dumps([t.episode_return for t in _episodes(result.folder)]))


def _episodes(folder: Path) -> list[Any]:
    from eval_harness.log import read_episodes

    return [logged.trajectory for logged in read_episodes(folder)]


TRAIN = """
import sys
from trainers.bc import train_bc
from trainers.value_training import ValueRun, train_values
train_bc("maze", "maze", "bc", steps=60)
run = ValueRun("{algorithm}", "maze", "maze", None, "bc", steps=12, batch_size=1024, lr=1e-3, q_vocab="dataset")
result = train_values(run, "values", push_to_hub="alice/maze-values")
print("pushed", result.revision)
"""


def test_trained_pushed_and_measured_in_a_fresh_process(tmp_path: Path) -> None:
    """The repository plays the very episodes that the folder plays, with the same returns."""
    from hub_datasets.build import build
    from hub_datasets.plan import make_plan

    build(make_plan("maze", episodes={"train": 60, "validation": 5}), tmp_path / "maze", workers=1)
    with HubServer(tmp_path / "hub") as hub:
        environment = client_environment(hub, tmp_path / "home")
        environment["PYTHONPATH"] = str(Path(__file__).parent)

        def python(code: str, *arguments: str) -> str:
            command = [sys.executable, "-c", code, *arguments]
            done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True)
            assert done.returncode == 0, done.stderr[-3000:]
            return done.stdout.strip().splitlines()[-1]

        assert python(TRAIN.format(algorithm="ilql")).startswith("pushed ")
        fresh = json.loads(python(SCRIPT, "alice/maze-values"))
    here = run("maze", str(tmp_path / "values"), episodes=20, output=tmp_path / "here", progress=False)
    assert fresh == [t.episode_return for t in _episodes(here.folder)]
    card = (tmp_path / "values/README.md").read_text()
    assert "implicit language Q-learning" in card and "lmrl train ilql --task maze" in card


def test_train_bc_still_reads_older_records(tmp_path: Path) -> None:
    """A policy.json of format 1, which had no `values`."""
    from hub_datasets.build import build
    from hub_datasets.plan import make_plan

    build(make_plan("maze", episodes={"train": 5}), tmp_path / "maze", workers=1)
    train_bc("maze", str(tmp_path / "maze"), tmp_path / "bc", steps=1)
    path = tmp_path / "bc/policy.json"
    record = json.loads(path.read_text())
    del record["values"]
    path.write_text(json.dumps({**record, "format": 1}))
    assert type(load_policy(str(tmp_path / "bc"), task="maze", device="cpu")) is LanguageModelPolicy
