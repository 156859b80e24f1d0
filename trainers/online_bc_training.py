"""From a policy to a better one by its own best episodes: what `lmrl train online-bc` does.

It begins with a language model that can say what the task understands, usually one trained by `lmrl train bc`. A
checkpoint is written after every so many rounds; a run that was stopped, in the middle of a round or of playing it,
goes on there.
"""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any, NamedTuple

from env_servers.tasks import load_task
from hub_datasets.load import resolve
from trainers.adapters import lora_settings
from trainers.filters import check_rule
from trainers.finish import finish, record_of
from trainers.generators import OWN, check_choice, make_engine
from trainers.load import PolicyRecord, make_repository
from trainers.monitor import Measuring, check_env, reads_like, train_until_stopped
from trainers.online_bc import KEPT_RETURN, OnlineBCConfig, OnlineBCTrainer
from trainers.policy import LanguageModelPolicy
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
from trainers.scratch import SIZES
from trainers.sequences import build_dataset

TRANSCRIPTS = "transcripts"


class OnlineBCRun(NamedTuple):
    """What decides on the policy that a run makes; kept in `run.json`. The meaning of each is in `train_online_bc`."""

    task: str
    init: str
    source: str | None = None
    revision: str | None = None
    config: str | None = None
    offline_share: float = 0.0
    rendering: str | None = None
    max_length: int | None = None
    rounds: int = 20
    rollouts: int = 128
    slots: int = 64
    filter: str = "top:30"
    buffer_rounds: int = 1
    steps_per_round: int = 16
    batch_size: int = 32
    accumulation: int = 1
    lr: float = 1e-5
    schedule: str = "constant"
    max_grad_norm: float = 1.0
    temperature: float = 1.0
    response_length: int | None = None
    max_episode_tokens: int | None = None
    lora_rank: int | None = None
    lora_alpha: float | None = None
    lora_targets: str | None = None
    save_rounds: int = 1
    eval_rounds: int = 0
    eval_episodes: int = 128
    seed: int = 0
    processes: int = 1

    def command(self) -> str:
        """The command line that repeats the run."""
        shown = {**self._asdict(), "source": None if self.source is None else public_name(self.source)}
        return command_line("online-bc", {name: v for name, v in shown.items() if name != "processes"}, self.processes)


def train_online_bc(
    run: OnlineBCRun,
    output_dir: str | Path,
    *,
    generation: str = OWN,
    env: str | None = None,
    report_to: str = "none",
    push_to_hub: str | None = None,
    private: bool = False,
    resume: bool = True,
    overwrite: bool = False,
    token: str | bool | None = None,
) -> TrainResult:
    """Improve a policy by imitating its own best episodes, save it, and put it on the Hub if asked to.

    Args:
        run: The run's settings. `task` is played and `init` begins, a folder or a repository. `rounds` of `rollouts`
            episodes each (of all processes), `slots` at the same time (in each); the `filter` (see
            `trainers.filters`) chooses among those of the last `buffer_rounds` (0 is all), and `steps_per_round` steps
            on `batch_size` sequences (of all processes) follow, each in `accumulation` parts. `lr`, `schedule` (a name
            of transformers), `max_grad_norm`. `offline_share` of a batch are sequences of a dataset (`source`,
            `revision`, `config`). `temperature` of sampling, at most `response_length` tokens for an action and
            `max_episode_tokens` for all of an episode. With a `lora_rank` adapters are learned instead of all weights,
            and merged into them at the end, see `adapters.lora_settings`. A checkpoint every `save_rounds`; every
            `eval_rounds` it plays `eval_episodes` of the validation split, and the weights with the best mean return
            are kept. `processes` is filled in.
        output_dir: Folder of the run, see `trainers.runs`. Sample episodes of each round are in `transcripts`.
        generation: Who writes the actions of the rounds, see `trainers.generators.make_engine`.
        env: Servers that all episodes are played on, see `env_servers.client.remote_envs`; None plays them here.
        report_to: As in `trainers.bc.train_bc`, as are the others.
        push_to_hub: See there.
        private: See there.
        resume: See there.
        overwrite: See there.
        token: See there.

    Raises:
        ValueError: A setting has a value it does not take, the data is of another task, or the filter leaves nothing.
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
    check_choice(generation)
    check_env(run.task, 1, env, alone=True)
    if push_to_hub is not None and state.is_main_process:
        make_repository(push_to_hub, private=private, token=token)
    data = None if run.source is None else resolve(run.source, run.revision, token)
    run = run._replace(
        source=None if data is None else data.path,
        revision=None if data is None else data.revision,
        lora_rank=run.lora_rank or None,
        processes=state.num_processes,
    )
    return carry_out(
        folder,
        run._asdict(),
        lambda checkpoint: _learn(
            run, folder, checkpoint, push_to_hub or folder.name, env, report_to, token, generation=generation
        ),
        push_to_hub=push_to_hub,
        resume=resume,
        overwrite=overwrite,
        token=token,
    )


def _check(run: OnlineBCRun) -> None:
    """Raise a ValueError for settings that cannot be."""
    load_task(run.task)
    check_rule(run.filter)
    lora_settings(run.lora_rank, run.lora_alpha, run.lora_targets)
    for name in ("lr", "accumulation", "save_rounds", "eval_episodes"):
        if not getattr(run, name) > 0:
            raise ValueError(f"{name} is {getattr(run, name)}; it must be above 0")
    if bool(run.offline_share) != (run.source is not None):
        raise ValueError(
            f"offline_share is {run.offline_share} and the dataset is {run.source}; a share of its episodes needs "
            "both (--dataset, --offline-share)"
        )
    if run.init in SIZES:
        raise ValueError(
            f"init is {run.init}, random weights, which say nothing that a task understands; train a policy first, as "
            f"by `lmrl train bc --task {run.task} --init {run.init}`, and give its folder"
        )


def _learn(
    run: OnlineBCRun,
    folder: Path,
    checkpoint: str | None,
    name: str,
    env: str | None,
    report_to: str,
    token: str | bool | None,
    *,
    generation: str,
) -> PolicyRecord:
    spec, state = load_task(run.task).spec, processes()
    if state.device.type == "cpu":
        keep_freed_memory()
    if checkpoint is None and state.is_main_process:
        shutil.rmtree(folder / TRANSCRIPTS, ignore_errors=True)
    model, tokenizer, base_model, first_folder = first_model(
        run.init, [], folder, max_length=run.max_length or 1024, seed=run.seed, token=token
    )
    memory = behavior_memory(first_folder, spec)
    renderer = make_renderer(model, tokenizer, spec, run.rendering, run.max_length, memory)
    dataset = None
    if run.source is not None:
        dataset = build_dataset(read_episodes(spec, run.source, run.config, run.revision, token), renderer)
    arguments = _arguments(run, folder, report_to, renderer.memory)
    measuring = None
    if run.eval_rounds:

        def policy_of(_: Any) -> LanguageModelPolicy:
            return LanguageModelPolicy(trainer.playing_model(), tokenizer, spec, name=name, **reads_like(renderer))

        steps = run.eval_rounds * run.steps_per_round
        measuring = Measuring(run.task, steps, run.eval_episodes, policy_of, env, alone=True)
        arguments |= measuring.arguments()
    trainer = OnlineBCTrainer(
        model,
        OnlineBCConfig(**arguments),
        run.task,
        tokenizer,
        peft_config=lora_settings(run.lora_rank, run.lora_alpha, run.lora_targets),
        bc_dataset=dataset,
        renderer=renderer,
        env=env,
        name=name,
        transcripts=folder / TRANSCRIPTS,
    )
    trainer.policy.engine = make_engine(generation, trainer.policy)
    trainer.measuring = measuring
    train_until_stopped(trainer, checkpoint)
    played = [entry for entry in trainer.state.log_history if KEPT_RETURN in entry]
    record = record_of(
        "online_bc",
        renderer,
        base_model=base_model,
        seed=run.seed,
        dataset=None if run.source is None else dataset_record(run.source, run.config, run.revision),
        filter=run.filter,
        training={
            "rounds": len(played),
            "rollouts": run.rollouts,
            "env_steps": played[-1][ENV_STEPS],
            "steps": trainer.state.global_step,
            "batch_size": run.batch_size,
            "learning_rate": run.lr,
            **outcome(trainer.state, run.eval_episodes),
        },
    )
    return finish(trainer, folder, renderer, record, name=name, command=run.command())


# Settings of a run that `OnlineBCConfig` has by the same name.
SHARED = (
    *("rounds", "rollouts", "slots", "filter", "buffer_rounds", "steps_per_round", "batch_size", "max_grad_norm"),
    *("offline_share", "temperature", "response_length", "max_episode_tokens"),
)


def _arguments(run: OnlineBCRun, folder: Path, report_to: str, memory: int | None) -> dict[str, Any]:
    common = trainer_arguments(
        folder,
        steps=run.rounds * run.steps_per_round,
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
