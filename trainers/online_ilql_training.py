"""From a dataset and own episodes to a saved value policy: what `lmrl train online-ilql` does.

It begins with a behaviour policy, usually one trained by `lmrl train bc`, and learns values from nothing, for some
steps offline; or with a policy of `lmrl train ilql`, and goes on from its values. Of that, trunk and Q heads are saved
and become the targets, too; V, which nobody acts by, is learned of them first (`fit_v`).
"""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any, NamedTuple

import torch

from env_servers.tasks import load_task
from hub_datasets.load import resolve
from trainers.adapters import has_adapters
from trainers.finish import finish, record_of
from trainers.ilql import ILQLModel
from trainers.load import PolicyRecord, find_policy, load_policy, make_repository, read_record
from trainers.monitor import Measuring, check_env, reads_like, train_until_stopped
from trainers.online_ilql import OWN, V_STEPS, OnlineILQLConfig, OnlineILQLTrainer, fit_v
from trainers.rounds import ENV_STEPS
from trainers.runs import (
    TrainResult,
    behavior_memory,
    carry_out,
    command_line,
    dataset_record,
    first_model,
    keep_freed_memory,
    make_renderer,
    outcome,
    processes,
    public_name,
    read_episodes,
    trainer_arguments,
)
from trainers.scratch import SIZES, new_model
from trainers.transitions import Discounting, build_transitions, check_discounting, token_ids
from trainers.value_policy import ValuePolicy
from trainers.values import HeadSettings, trunk_of

TRANSCRIPTS = "transcripts"
Q_VOCABULARIES = ("all", "dataset")


class OnlineILQLRun(NamedTuple):
    """What decides on the policy that a run makes; kept in `run.json`. The meaning of each is in
    `train_online_ilql`."""

    task: str
    source: str
    revision: str | None
    init: str
    config: str | None = None
    trunk: str | None = None
    rendering: str | None = None
    max_length: int | None = None
    rounds: int = 20
    rollouts: int = 128
    slots: int = 64
    steps_per_round: int = 64
    offline_steps: int = 0
    batch_size: int = 128
    online_share: float = 0.5
    buffer_rounds: int = 0
    accumulation: int = 1
    lr: float = 1e-4
    schedule: str = "constant"
    adam_beta2: float = 0.95
    max_grad_norm: float = 1.0
    gamma: float = 0.99
    discount: str = "token"
    reward_scale: float = 1.0
    cql_weight: float = 0.01
    tau: float = 0.7
    target_rate: float = 0.005
    beta: float = 4.0
    linear_heads: bool = False
    head_bias: float = 0.0
    q_vocab: str = "all"
    temperature: float = 1.0
    response_length: int | None = None
    max_episode_tokens: int | None = None
    save_rounds: int = 1
    eval_rounds: int = 0
    eval_episodes: int = 128
    seed: int = 0
    processes: int = 1

    def command(self) -> str:
        """The command line that repeats the run."""
        shown = {**self._asdict(), "source": public_name(self.source)}
        given = {name: value for name, value in shown.items() if name != "processes"}
        return command_line("online-ilql", given, self.processes)


def train_online_ilql(
    run: OnlineILQLRun,
    output_dir: str | Path,
    *,
    env: str | None = None,
    report_to: str = "none",
    push_to_hub: str | None = None,
    private: bool = False,
    resume: bool = True,
    overwrite: bool = False,
    token: str | bool | None = None,
) -> TrainResult:
    """Learn values from a dataset and from own episodes, save them, and put them on the Hub if asked to.

    Args:
        run: The run's settings. `task`, and `source`, `revision` and `config` of the dataset; `init` is a behaviour
            policy, or an ILQL policy whose values it goes on from, a folder or a repository. Of values that begin from
            nothing `trunk` is `tiny` or `small` (random weights; None is a copy of the behaviour policy's body), and
            `linear_heads`, `head_bias` and `q_vocab` are as in `trainers.value_training.train_values`; of an ILQL
            policy all of these are its own. `offline_steps` on the dataset alone; then `rounds` of `rollouts` episodes
            each (of all processes), `slots` at the same time (in each), played with `beta` times the values, and
            `steps_per_round` steps of `batch_size` sequences (of all processes) in `accumulation` parts, of which
            `online_share` are own episodes' of the last `buffer_rounds` (0 is all). `lr`, `schedule` (a name of
            transformers), `adam_beta2`, `max_grad_norm`, `gamma`, `discount`, `reward_scale`, `cql_weight`, `tau` and
            `target_rate` as there. `temperature` of sampling, at most `response_length` tokens for an action and
            `max_episode_tokens` for all of an episode. A checkpoint every `save_rounds`; every `eval_rounds` it plays
            `eval_episodes` of the validation split, and the weights with the best mean return are kept. `processes` is
            filled in.
        output_dir: Folder of the run, see `trainers.runs`. Sample episodes of each round are in `transcripts`.
        env: Servers that all episodes are played on, see `env_servers.client.remote_envs`; None plays them here.
        report_to: As in `trainers.bc.train_bc`, as are the others.
        push_to_hub: See there.
        private: See there.
        resume: See there.
        overwrite: See there.
        token: See there.

    Raises:
        ValueError: A setting has a value it does not take, or the data is of another task.
        FileExistsError: The folder holds something else.
        FileNotFoundError: There is no such dataset, model or repository.
        PermissionError: The Hub refused.
        ConnectionError: The Hub could not be reached.
        EpisodeError: The servers could not, or do not play the task as it is here.
        FloatingPointError: Training diverged.
        KeyboardInterrupt: It was stopped; the same call goes on from there.
    """
    folder, state = Path(output_dir), processes()
    _check(run)
    check_env(run.task, 1, env, alone=True)
    if push_to_hub is not None and state.is_main_process:
        make_repository(push_to_hub, private=private, token=token)
    data = resolve(run.source, run.revision, token)
    run = run._replace(source=data.path, revision=data.revision, processes=state.num_processes)
    return carry_out(
        folder,
        run._asdict(),
        lambda checkpoint: _learn(run, folder, checkpoint, push_to_hub or folder.name, env, report_to, token),
        push_to_hub=push_to_hub,
        resume=resume,
        overwrite=overwrite,
        token=token,
    )


def _check(run: OnlineILQLRun) -> None:
    """Raise a ValueError for settings that cannot be."""
    load_task(run.task)
    check_discounting(Discounting(run.gamma, run.discount, run.reward_scale))
    for name in ("lr", "accumulation", "save_rounds", "eval_episodes"):
        if not getattr(run, name) > 0:
            raise ValueError(f"{name} is {getattr(run, name)}; it must be above 0")
    if not 0 < run.tau < 1:
        raise ValueError(f"tau is {run.tau}; allowed are numbers between 0 and 1")
    if run.q_vocab not in Q_VOCABULARIES:
        raise ValueError(f"q_vocab is {run.q_vocab!r}; allowed: {', '.join(Q_VOCABULARIES)}")
    if run.trunk not in (None, *SIZES):
        raise ValueError(
            f"trunk is {run.trunk!r}; allowed: {', '.join(SIZES)}, or none for the behaviour policy's body"
        )
    if run.init in SIZES:
        raise ValueError(f"init is {run.init}: random weights; begin with a policy that plays, as from `lmrl train bc`")


def _learn(
    run: OnlineILQLRun,
    folder: Path,
    checkpoint: str | None,
    name: str,
    env: str | None,
    report_to: str,
    token: str | bool | None,
) -> PolicyRecord:
    spec, state = load_task(run.task).spec, processes()
    if state.device.type == "cpu":
        keep_freed_memory()
    if checkpoint is None and state.is_main_process:
        shutil.rmtree(folder / TRANSCRIPTS, ignore_errors=True)
    behavior, tokenizer, base_model, first_folder = first_model(
        run.init, [], folder, max_length=run.max_length or 1024, seed=run.seed, token=token
    )
    memory = behavior_memory(first_folder, spec)
    renderer = make_renderer(behavior, tokenizer, spec, run.rendering, run.max_length, memory)
    episodes = read_episodes(spec, run.source, run.config, run.revision, token)
    offline = build_transitions(episodes, renderer, Discounting(run.gamma, run.discount, run.reward_scale))
    model, trunk = _first_values(run, behavior, tokenizer, offline, token)
    arguments = _arguments(run, folder, report_to, renderer.memory)
    measuring = None
    if run.eval_rounds:

        def policy_of(_: Any) -> ValuePolicy:
            values, reads = trainer.playing_model(), reads_like(renderer)
            return ValuePolicy(trainer.behavior, tokenizer, spec, values=values, beta=run.beta, name=name, **reads)

        steps = run.eval_rounds * run.steps_per_round
        measuring = Measuring(run.task, steps, run.eval_episodes, policy_of, env, alone=True)
        arguments |= measuring.arguments()
    trainer = OnlineILQLTrainer(
        model,
        OnlineILQLConfig(**arguments),
        run.task,
        tokenizer,
        behavior=behavior,
        offline=offline,
        renderer=renderer,
        env=env,
        name=name,
        transcripts=folder / TRANSCRIPTS,
    )
    trainer.measuring = measuring
    train_until_stopped(trainer, checkpoint)
    played = [entry for entry in trainer.state.log_history if OWN in entry]
    record = record_of(
        "online_ilql",
        renderer,
        base_model=base_model,
        seed=run.seed,
        dataset=dataset_record(run.source, run.config, run.revision),
        training={
            "rounds": len(played),
            "rollouts": run.rollouts,
            "env_steps": played[-1][ENV_STEPS],
            "steps": trainer.state.global_step,
            "batch_size": run.batch_size,
            "learning_rate": run.lr,
            **outcome(trainer.state, run.eval_episodes),
        },
        kind="values",
        values={**model.settings._asdict(), "beta": run.beta, "q_heads": 2, "trunk": trunk},
    )
    acting = trainer.accelerator.unwrap_model(trainer.model).acting_state(keep=state.is_main_process)
    command = run.command()
    return finish(trainer, folder, renderer, record, name=name, command=command, model=behavior, values=acting)


def _first_values(
    run: OnlineILQLRun, behavior: Any, tokenizer: Any, offline: Any, token: str | bool | None
) -> tuple[ILQLModel, dict[str, Any] | None]:
    """What the values begin as, and the configuration of their trunk where it is not the behaviour policy's."""
    learned = {"tau": run.tau, "cql_weight": run.cql_weight}
    saved = read_record(find_policy(run.init, token=token).folder)
    torch.manual_seed(run.seed)
    if saved is None or saved.values is None:
        ids = token_ids(offline) if run.q_vocab == "dataset" else None
        positions = getattr(behavior.config.get_text_config(), "max_position_embeddings", None) or 1024
        other = None if run.trunk is None else new_model(run.trunk, tokenizer, positions, seed=run.seed)
        settings = HeadSettings(run.linear_heads, run.head_bias, ids)
        trunk = trunk_of(behavior if other is None else other)
        return ILQLModel(trunk, settings, **learned), None if other is None else other.config.to_dict()
    policy = load_policy(run.init, task=run.task, device="cpu", dtype="float32", token=token)
    assert isinstance(policy, ValuePolicy), "a record with values is a value policy's"
    values = policy.values
    if values.q2 is None or has_adapters(values.trunk):
        raise ValueError(
            f"{run.init} has {'adapters' if values.q2 is not None else 'one Q head'}; online ILQL goes on from what "
            "`lmrl train ilql` learns without --lora-rank, or begins with a behaviour policy"
        )
    model = ILQLModel(values.trunk, values.settings, **learned)
    model.load_acting_state(values.acting_state())
    model.move_targets(1.0)
    pad = tokenizer.eos_token_id if tokenizer.pad_token_id is None else tokenizer.pad_token_id
    fit_v(model, offline, int(pad), steps=V_STEPS, batch_size=run.batch_size, seed=run.seed)
    return model, saved.values["trunk"]


# Settings of a run that `OnlineILQLConfig` has by the same name.
SHARED = (
    *("rounds", "rollouts", "slots", "steps_per_round", "offline_steps", "batch_size", "online_share", "buffer_rounds"),
    *("adam_beta2", "max_grad_norm", "gamma", "discount", "reward_scale", "cql_weight", "tau", "target_rate", "beta"),
    *("temperature", "response_length", "max_episode_tokens"),
)


def _arguments(run: OnlineILQLRun, folder: Path, report_to: str, memory: int | None) -> dict[str, Any]:
    common = trainer_arguments(
        folder,
        steps=run.offline_steps + run.rounds * run.steps_per_round,
        rows=1,  # unused: a step has as many as its share of the batch
        accumulation=run.accumulation,
        lr=run.lr,
        seed=run.seed,
        lengths=[1],
        memory=memory,
        report_to=report_to,
    )
    return common | {
        "lr_scheduler_type": run.schedule,
        "logging_steps": run.steps_per_round,
        "save_steps": run.save_rounds * run.steps_per_round,
        **{name: getattr(run, name) for name in SHARED},
    }
