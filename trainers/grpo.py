"""From a policy to a better one by TRL's GRPO: what `lmrl train grpo` does.

The algorithm is TRL's `GRPOTrainer`; here it is given episodes, by `trainers.rollouts`. A group plays one seed, the
reward of all of an episode's tokens is the episode's return, and its advantage is what it is above the group's mean.
With `scale_rewards=none` that is RLOO but for a factor: TRL's own `RLOOTrainer` takes neither environments nor masks.
"""

from __future__ import annotations

import copy
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from datasets import Dataset
from peft import get_peft_model
from trl.trainer.grpo_config import GRPOConfig
from trl.trainer.grpo_trainer import GRPOTrainer

from env_servers.cli import env_maker
from env_servers.tasks import load_task, unknown
from trainers.adapters import lora_config, lora_settings
from trainers.finish import finish, record_of
from trainers.load import PolicyRecord, make_repository
from trainers.monitor import WHOLE_WEIGHTS, Measured, Measuring, check_env, reads_like, train_until_stopped
from trainers.policy import LanguageModelPolicy
from trainers.rollouts import episode_rows, return_reward, rollout_func_for
from trainers.runs import (
    TrainResult,
    behavior_memory,
    carry_out,
    command_line,
    first_model,
    keep_freed_memory,
    make_renderer,
    outcome,
    processes,
    trainer_arguments,
)
from trainers.scratch import SIZES
from trainers.sharding import sharding_checkpoints, whole

# What the run itself says, or what its episodes leave no room for.
OURS = (
    "output_dir", "max_steps", "seed", "learning_rate", "num_generations", "beta", "temperature", "use_vllm",
    "report_to", "remove_unused_columns", "run_name", "per_device_train_batch_size", "max_completion_length",
)  # fmt: skip


class GRPORun(NamedTuple):
    """What decides on the policy that a run makes; kept in `run.json`. The meaning of each is in `train_grpo`."""

    task: str
    init: str
    steps: int = 100
    episodes: int = 64
    num_generations: int = 8
    rows_per_episode: int = 1
    lr: float = 1e-6
    beta: float = 0.0
    temperature: float = 1.0
    starts: int = 10_000
    max_completion_length: int = 1024
    response_length: int | None = None
    slots: int | None = None
    rendering: str | None = None
    max_length: int | None = None
    lora_rank: int | None = None
    lora_alpha: float | None = None
    lora_targets: str | None = None
    option: Sequence[str] = ()
    eval_steps: int = 0
    eval_episodes: int = 128
    seed: int = 0
    processes: int = 1

    def command(self) -> str:
        """The command line that repeats the run."""
        shown = {name: value for name, value in self._asdict().items() if name not in ("processes", "option")}
        words = command_line("grpo", shown, self.processes)
        return " ".join([words, *(f"--option {one}" for one in self.option)])


class EpisodeGRPOTrainer(Measured, GRPOTrainer):
    """TRL's trainer, which plays episodes where it evaluates; with weights in parts, by a copy of the model.

    With FSDP and ZeRO-3 a call of the model is one of all processes, and their episodes are of different lengths.

    Attributes:
        player: The copy; None where each process has the whole model anyway.
    """

    def __init__(self, model: Any, *, peft_config: Any = None, **options: Any) -> None:
        first = copy.deepcopy(model)  # now: TRL gives the model another `forward`, which a later copy would share
        super().__init__(model, peft_config=peft_config, **options)
        self.player: Any = None
        if self.accelerator.distributed_type not in WHOLE_WEIGHTS:
            like = first if peft_config is None else get_peft_model(first, copy.deepcopy(peft_config))
            self.player = like.to(self.args.device)

    def playing_model(self) -> Any:
        """The policy as a model that this process can use by itself; all processes must call it together."""
        trained: Any = self.accelerator.unwrap_model(self.model, keep_torch_compile=False)
        if self.player is None:
            return trained
        self.player.load_state_dict(whole(trained.state_dict(keep_vars=True)))
        return self.player


def read_options(words: Sequence[str]) -> dict[str, Any]:
    """Fields of `trl.GRPOConfig` from NAME=VALUE; values are JSON, or else text.

    Raises:
        ValueError: One has no value, is no field, or is one that the run decides on.
    """
    options: dict[str, Any] = {}
    for word in words:
        name, equals, text = word.partition("=")
        if not equals:
            raise ValueError(f"option {word!r} has no value; give NAME=VALUE, such as scale_rewards=none")
        if name in OURS:
            raise ValueError(f"option {name} is not free here: it has an option of its own, or the episodes decide it")
        if name not in GRPOConfig.__dataclass_fields__:
            raise ValueError(unknown("field of GRPOConfig", name, sorted(GRPOConfig.__dataclass_fields__)))
        try:
            options[name] = json.loads(text)
        except ValueError:
            options[name] = text
    return options


def train_grpo(
    run: GRPORun,
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
    """Improve a policy by GRPO on episodes that it plays, save it, and put it on the Hub if asked to.

    Args:
        run: The run's settings. `task` is played and `init` begins, a folder or a repository. `steps` of the optimiser,
            each on `episodes` of each process in groups of `num_generations`; the groups play the first `starts` of the
            train split, in random order. An episode gives `rows_per_episode` sequences to learn from, where it makes
            several (see `trainers.rollouts`). `lr`; `beta` weighs the divergence from the first policy; `temperature`
            of sampling; at most `max_completion_length` ids from a sequence's first action on, or the episode is cut,
            and `response_length` for an action (the task's own by default); `slots` episodes at the same time (all by
            default). With a `lora_rank` adapters are learned, and merged into the weights at the end. `option` are
            other fields of `trl.GRPOConfig` as NAME=VALUE. Every `eval_steps` it plays `eval_episodes` of the
            validation split, and the weights with the best mean return are kept. `processes` is filled in.
        output_dir: Folder of the run, see `trainers.runs`.
        env: Servers that all episodes are played on, see `env_servers.client.remote_envs`; None plays them here.
        report_to: As in `trainers.bc.train_bc`, as are the others.
        push_to_hub: See there.
        private: See there.
        resume: See there.
        overwrite: See there.
        token: See there.

    Raises:
        ValueError: A setting has a value it does not take.
        FileExistsError: The folder holds something else.
        FileNotFoundError: There is no such model or repository.
        PermissionError: The Hub refused.
        ConnectionError: The Hub could not be reached.
        EpisodeError: The servers could not, or do not play the task as it is here.
        KeyboardInterrupt: It was stopped; the same call goes on from there.
    """
    folder, state = Path(output_dir), processes()
    _check(run)
    lora_settings(run.lora_rank, run.lora_alpha, run.lora_targets)
    check_env(run.task, 1, env, alone=True)  # it plays in any case
    if push_to_hub is not None and state.is_main_process:
        make_repository(push_to_hub, private=private, token=token)
    settings = run._replace(option=tuple(run.option), processes=state.num_processes)
    return carry_out(
        folder,
        settings._asdict(),
        lambda checkpoint: _learn(settings, folder, checkpoint, push_to_hub or folder.name, env, report_to, token),
        push_to_hub=push_to_hub,
        resume=resume,
        overwrite=overwrite,
        token=token,
    )


def _check(run: GRPORun) -> None:
    """Raise a ValueError for settings that cannot be."""
    load_task(run.task)
    read_options(run.option)
    for name in ("steps", "episodes", "rows_per_episode", "starts", "lr", "temperature"):
        if not getattr(run, name) > 0:
            raise ValueError(f"{name} is {getattr(run, name)}; it must be above 0")
    if run.num_generations < 2 or run.episodes % run.num_generations:
        raise ValueError(
            f"{run.episodes} episodes do not divide into groups of {run.num_generations}, each of at least 2; change "
            "episodes (--episodes) or num_generations (--num-generations)"
        )
    if run.init in SIZES:
        raise ValueError(f"init is {run.init}: random weights; begin with a policy that plays, as from `lmrl train bc`")


def _learn(
    run: GRPORun,
    folder: Path,
    checkpoint: str | None,
    name: str,
    env: str | None,
    report_to: str,
    token: str | bool | None,
) -> PolicyRecord:
    """Train and save; what `train_grpo` does when the folder holds no policy yet."""
    spec, state = load_task(run.task).spec, processes()
    if state.device.type == "cpu":
        keep_freed_memory()
    start = first_model(run.init, [], folder, max_length=run.max_length or 1024, seed=run.seed, token=token)
    memory = behavior_memory(start.folder, spec)
    renderer = make_renderer(start.model, start.tokenizer, spec, run.rendering, run.max_length, memory)
    common = trainer_arguments(
        folder,
        steps=run.steps,
        rows=run.episodes * run.rows_per_episode,
        accumulation=1,
        lr=run.lr,
        seed=run.seed,
        lengths=[1],  # an episode's length is known once it has been played
        memory=renderer.memory,
        report_to=report_to,
    )
    common |= {
        "num_generations": run.num_generations * run.rows_per_episode,
        "num_generations_eval": 1,  # it plays to evaluate, which is not in groups
        "beta": run.beta,
        "temperature": run.temperature,
        "max_completion_length": run.max_completion_length,
        "bf16": state.device.type != "cpu",
        **({"gradient_checkpointing": False} if sharding_checkpoints() else {}),
        "logging_steps": max(1, run.steps // 20),
        **read_options(run.option),
    }

    def policy_of(_: Any) -> LanguageModelPolicy:
        return LanguageModelPolicy(trainer.playing_model(), start.tokenizer, spec, name=name, **reads_like(renderer))

    measuring = None
    if run.eval_steps:
        measuring = Measuring(spec.id, run.eval_steps, run.eval_episodes, policy_of, env, alone=True)
        common |= measuring.arguments()
    lora = lora_settings(run.lora_rank, run.lora_alpha, run.lora_targets)
    rows = Dataset.from_list(episode_rows(spec.id, range(run.starts)))
    with env_maker(env) as make:
        trainer = EpisodeGRPOTrainer(
            start.model,
            reward_funcs=return_reward,
            args=GRPOConfig(**common),
            train_dataset=rows,
            eval_dataset=rows if measuring else None,  # the trainer asks for one; playing needs none
            processing_class=start.tokenizer,
            peft_config=None if lora is None else lora_config(start.model, lora, task_type="CAUSAL_LM"),
            rollout_func=rollout_func_for(
                spec.id,
                env_maker=make,
                rendering=renderer.rendering,
                memory=memory,
                max_length=renderer.max_length,
                max_new_tokens=run.response_length,
                slots=run.slots,
                rows_per_episode=run.rows_per_episode,
            ),
        )
        trainer.measuring = measuring
        train_until_stopped(trainer, checkpoint)
    record = record_of(
        "grpo",
        renderer,
        base_model=start.base_model,
        seed=run.seed,
        training={
            "episodes": run.steps * run.episodes * state.num_processes,
            "steps": run.steps,
            "batch_size": run.episodes * state.num_processes,
            "learning_rate": run.lr,
            **outcome(trainer.state, run.eval_episodes),
        },
    )
    trained = trainer.playing_model()
    if lora is not None:
        trained = trained.merge_and_unload()
    return finish(trainer, folder, renderer, record, name=name, command=run.command(), model=trained)
