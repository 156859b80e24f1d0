"""From a policy to a better one: what `lmrl train ppo` does.

It begins with a language model that can say what the task understands, usually one trained by `lmrl train bc`, and
learns from episodes that it plays itself. A checkpoint is written after every so many rounds; a run that was stopped,
in the middle of a round or of playing it, goes on there. One that an alarm stopped leaves its last good policy.
"""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any, NamedTuple

from transformers.trainer_utils import PREFIX_CHECKPOINT_DIR

from env_servers.tasks import load_task
from hub_datasets.load import resolve
from trainers.actor_critic import ActorCritic
from trainers.adapters import lora_settings
from trainers.alarms import TrainingCollapsed
from trainers.finish import finish, record_of
from trainers.generators import OWN, check_choice, make_engine
from trainers.load import PolicyRecord, make_repository, save_policy
from trainers.monitor import Measuring, check_env, reads_like, train_until_stopped
from trainers.policy import LanguageModelPolicy
from trainers.ppo import KL, PPOConfig, PPOTrainer
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
from trainers.sharding import whole

LAST_GOOD, TRANSCRIPTS = "last_good", "transcripts"


class PPORun(NamedTuple):
    """What decides on the policy that a run makes; kept in `run.json`. The meaning of each is in `train_ppo`."""

    task: str
    init: str
    source: str | None = None
    revision: str | None = None
    config: str | None = None
    rendering: str | None = None
    max_length: int | None = None
    rounds: int = 100
    rollouts: int = 512
    slots: int = 64
    num_ppo_epochs: int = 4
    num_mini_batches: int = 4
    accumulation: int = 1
    lr: float = 1e-5
    schedule: str = "constant"
    adam_beta2: float = 0.999
    max_grad_norm: float = 1.0
    gamma: float = 0.99
    lam: float = 0.95
    discount: str = "token"
    reward_scale: float = 1.0
    whiten_rewards: bool = False
    cliprange: float = 0.2
    cliprange_value: float = 0.2
    vf_coef: float = 0.5
    kl_coef: float = 0.01
    kl_estimator: str = "k1"
    kl_target: float | None = None
    kl_horizon: int = 10_000
    bc_coef: float = 1.0
    bc_batch_size: int = 32
    temperature: float = 1.0
    response_length: int | None = None
    max_episode_tokens: int | None = None
    head_bias: float = 0.0
    lora_rank: int | None = None
    lora_alpha: float | None = None
    lora_targets: str | None = None
    alarm_kl: float = 5.0
    alarm_ratio: float = 1.0
    alarm_entropy: float = 0.001
    alarm_value_loss: float = 10.0
    alarm_invalid: float = 0.5
    save_rounds: int = 1
    eval_rounds: int = 0
    eval_episodes: int = 128
    seed: int = 0
    processes: int = 1

    def command(self) -> str:
        """The command line that repeats the run."""
        shown = {**self._asdict(), "source": None if self.source is None else public_name(self.source)}
        return command_line("ppo", {name: v for name, v in shown.items() if name != "processes"}, self.processes)


def train_ppo(
    run: PPORun,
    output_dir: str | Path,
    *,
    env: str | None = None,
    generation: str = OWN,
    report_to: str = "none",
    push_to_hub: str | None = None,
    private: bool = False,
    resume: bool = True,
    overwrite: bool = False,
    token: str | bool | None = None,
) -> TrainResult:
    """Improve a policy by PPO on episodes that it plays, save it, and put it on the Hub if asked to.

    Args:
        run: The run's settings. `task` is played and `init` begins, a folder or a repository. `rounds` of `rollouts`
            episodes each (of all processes), `slots` at the same time (in each); then `num_ppo_epochs` passes of
            `num_mini_batches` steps, each in `accumulation` parts. `lr`, `schedule` (a name of transformers),
            `adam_beta2`, `max_grad_norm`; `gamma` and `lam` per `discount` (`token` or `turn`); `reward_scale` and
            `whiten_rewards`; `cliprange`, `cliprange_value` (0 is none), `vf_coef`; `kl_coef` and `kl_estimator`
            (`k1` or `k3`), adapted to a `kl_target` (nats per token) over `kl_horizon` episodes. With a dataset
            (`source`, `revision`, `config`) `bc_coef` times the cross entropy of `bc_batch_size` of its sequences is
            added to the loss.
            `temperature` of sampling, at most `response_length` tokens for an action and `max_episode_tokens` for all
            of an episode. `head_bias` is the first value of all states. With a `lora_rank` adapters are learned
            instead of all weights, and merged into them at the end, see `adapters.lora_settings`. `alarm_...` as in
            `trainers.alarms`, 0 for none. A checkpoint every `save_rounds`; every `eval_rounds` it plays
            `eval_episodes` of the validation split, and the weights with the best mean return are kept. `processes` is
            filled in.
        output_dir: Folder of the run, see `trainers.runs`. Sample episodes of each round are in `transcripts`.
        env: Servers that all episodes are played on, see `env_servers.client.remote_envs`; None plays them here.
        generation: Who writes the actions of the rounds, see `trainers.generators.make_engine`.
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
        TrainingCollapsed: An alarm stopped it; the last good policy is in the folder `last_good`.
        KeyboardInterrupt: It was stopped; the same call goes on from there.
    """
    folder, state = Path(output_dir), processes()
    load_task(run.task)
    lora_settings(run.lora_rank, run.lora_alpha, run.lora_targets)
    for name in ("lr", "accumulation", "save_rounds", "eval_episodes"):
        if not getattr(run, name) > 0:
            raise ValueError(f"{name} is {getattr(run, name)}; it must be above 0")
    if run.init in SIZES:
        raise ValueError(
            f"init is {run.init}, random weights, which say nothing that a task understands; train a policy first, as "
            f"by `lmrl train bc --task {run.task} --init {run.init}`, and give its folder"
        )
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


def _learn(
    run: PPORun,
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
        for left in (LAST_GOOD, TRANSCRIPTS):
            shutil.rmtree(folder / left, ignore_errors=True)
    model, tokenizer, base_model, first_folder = first_model(
        run.init, [], folder, max_length=run.max_length or 1024, seed=run.seed, token=token
    )
    memory = behavior_memory(first_folder, spec)
    renderer = make_renderer(model, tokenizer, spec, run.rendering, run.max_length, memory)
    bc_dataset = None
    if run.source is not None:
        episodes = read_episodes(spec, run.source, run.config, run.revision, token)
        bc_dataset = build_dataset(episodes, renderer)
    arguments = _arguments(run, folder, report_to, renderer.memory)
    measuring = None
    if run.eval_rounds:

        def policy_of(_: ActorCritic) -> LanguageModelPolicy:
            return LanguageModelPolicy(trainer.playing_model(), tokenizer, spec, name=name, **reads_like(renderer))

        steps = run.eval_rounds * run.num_ppo_epochs * run.num_mini_batches
        measuring = Measuring(run.task, steps, run.eval_episodes, policy_of, env, alone=True)
        arguments |= measuring.arguments()
    trainer = PPOTrainer(
        model,
        PPOConfig(**arguments),
        run.task,
        tokenizer,
        peft_config=lora_settings(run.lora_rank, run.lora_alpha, run.lora_targets),
        bc_dataset=bc_dataset,
        renderer=renderer,
        env=env,
        name=name,
        transcripts=folder / TRANSCRIPTS,
    )
    trainer.measuring = measuring
    trainer.policy.engine = make_engine(generation, trainer.policy)
    try:
        train_until_stopped(trainer, checkpoint)
    except (TrainingCollapsed, FloatingPointError) as alarm:
        raise TrainingCollapsed(f"{alarm}{_save_last_good(run, folder, trainer, base_model, token)}") from alarm
    record = _record(run, trainer, base_model)
    actor = trainer.accelerator.unwrap_model(trainer.model)
    weights = actor.policy_state()
    return finish(trainer, folder, renderer, record, name=name, command=run.command(), model=actor.model, state=weights)


# Settings of a run that `PPOConfig` has by the same name.
SHARED = (
    *("rounds", "rollouts", "slots", "num_ppo_epochs", "num_mini_batches", "adam_beta2", "max_grad_norm", "gamma"),
    *("lam", "discount", "reward_scale", "whiten_rewards", "cliprange", "cliprange_value", "vf_coef", "kl_coef"),
    *("kl_estimator", "kl_target", "kl_horizon", "bc_coef", "bc_batch_size", "temperature", "response_length"),
    *("max_episode_tokens", "head_bias", "alarm_kl", "alarm_ratio", "alarm_entropy", "alarm_value_loss"),
    "alarm_invalid",
)


def _arguments(run: PPORun, folder: Path, report_to: str, memory: int | None) -> dict[str, Any]:
    steps = run.num_ppo_epochs * run.num_mini_batches
    common = trainer_arguments(
        folder,
        steps=run.rounds * steps,
        rows=1,  # unused: a minibatch has as many as a round's share of it
        accumulation=run.accumulation,
        lr=run.lr,
        seed=run.seed,
        lengths=[1],
        memory=memory,
        report_to=report_to,
    )
    return common | {
        "lr_scheduler_type": run.schedule,
        "logging_steps": steps,
        "save_steps": run.save_rounds * steps,
        **{name: getattr(run, name) for name in SHARED},
    }


def _record(run: PPORun, trainer: PPOTrainer, base_model: Any, last_good: int | None = None) -> PolicyRecord:
    """The policy's record: of the end of the run, or of the step `last_good`."""
    log, args = trainer.state.log_history, trainer.args
    assert isinstance(args, PPOConfig)
    steps = trainer.state.global_step if last_good is None else last_good
    played = [entry for entry in log if KL in entry][: steps // args.steps_per_round]
    told: dict[str, Any] = {}
    if last_good is None:
        told = {"kl_coef": played[-1]["objective/kl_coef"], "kl": played[-1][KL]}
        told |= outcome(trainer.state, run.eval_episodes)
    return record_of(
        "ppo",
        trainer.renderer,
        base_model=base_model,
        seed=run.seed,
        dataset=None if run.source is None else dataset_record(run.source, run.config, run.revision),
        training={
            "rounds": len(played),
            "rollouts": run.rollouts,
            "env_steps": played[-1][ENV_STEPS] if played else 0,
            "steps": steps,
            "learning_rate": run.lr,
            **told,
        },
    )


def _save_last_good(run: PPORun, folder: Path, trainer: PPOTrainer, base_model: Any, token: str | bool | None) -> str:
    """After an alarm: leave the policy of the last checkpoint before it as a policy of its own.

    A checkpoint's weights are good if the round that was played with them set off no alarm. An alarm comes after the
    round's play, or after its passes and before their checkpoint; so these are the last ones of an earlier step. Where
    there are none, it is the policy that the run began with.

    Returns:
        A sentence on where it is.
    """
    checkpoints = Path(str(trainer.args.output_dir)).glob(f"{PREFIX_CHECKPOINT_DIR}-*")
    good = [path for path in checkpoints if step_of(path) < trainer.state.global_step]
    found = max(good, key=step_of, default=None)
    actor = trainer.accelerator.unwrap_model(trainer.model)
    main, step = trainer.is_world_process_zero(), 0 if found is None else step_of(found)
    model, weights = actor.model, None
    if found is not None:
        trainer._load_from_checkpoint(str(found))
        weights = whole(actor.policy_state(), keep=main)
    elif main:
        length = run.max_length or 1024
        model = first_model(run.init, [], folder, max_length=length, seed=run.seed, token=token).model
    if main:
        record = _record(run, trainer, base_model, step)
        save_policy(folder / LAST_GOOD, model, trainer.processing_class, record, weights=weights)
    which = f"of step {step}" if step else f"the one that it began with ({run.init})"
    return f". The last good policy, {which}, is in {folder / LAST_GOOD}"


def step_of(checkpoint: Path) -> int:
    """The step that a checkpoint's folder is named after."""
    return int(checkpoint.name.rpartition("-")[2])
