"""From a dataset to a saved value policy: what `lmrl train ilql` and `lmrl train mc` do.

It begins with a language model that says what the data's agent says, the behaviour policy, usually one trained by
`lmrl train bc` on the same data. It stays as it is; a copy of its body, or the body itself with an adapter, becomes the
value trunk.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import torch
from transformers import AutoTokenizer

from env_servers.tasks import load_task
from hub_datasets.load import resolve
from trainers.adapters import lora_settings, state_without_adapters
from trainers.card import render_card
from trainers.ilql import ILQLConfig, ILQLModel, ILQLTrainer, ValueConfig, ValueTrainer
from trainers.load import PolicyRecord, find_policy, load_body, make_repository
from trainers.mc import MCModel
from trainers.monitor import Measuring, check_env, reads_like, train_until_stopped
from trainers.runs import (
    TrainResult,
    behavior_memory,
    carry_out,
    command_line,
    dataset_record,
    first_model,
    keep_freed_memory,
    leave_policy,
    make_renderer,
    outcome,
    processes,
    public_name,
    read_episodes,
    trainer_arguments,
)
from trainers.scratch import SIZES, new_model
from trainers.sharding import whole
from trainers.tokens import Renderer
from trainers.transitions import (
    Discounting,
    build_transitions,
    check_discounting,
    merge_transitions,
    token_ids,
    transition_collator,
)
from trainers.value_policy import ValuePolicy
from trainers.values import HeadSettings, ValueModel, lora_trunk, trunk_of

ALGORITHMS = ("ilql", "mc")
Q_VOCABULARIES = ("all", "dataset")
SCHEDULES = ("constant", "linear", "cosine")
WITH_WARMUP = {"constant": "constant_with_warmup", "linear": "linear", "cosine": "cosine"}  # transformers' names


class ValueRun(NamedTuple):
    """What decides on the policy that a run makes; kept in `run.json`. The meaning of each is in `train_values`."""

    algorithm: str
    task: str
    source: str
    revision: str | None
    init: str
    trunk: str | None = None
    rendering: str | None = None
    steps: int | None = None
    epochs: float = 3.0
    batch_size: int = 128
    accumulation: int = 1
    lr: float = 1e-4
    schedule: str = "constant"
    warmup_steps: float = 0.0
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
    lora_rank: int | None = None
    lora_alpha: float | None = None
    lora_targets: str | None = None
    max_length: int | None = None
    eval_steps: int = 0
    eval_episodes: int = 128
    seed: int = 0
    processes: int = 1
    config: str | None = None

    def command(self) -> str:
        """The command line that repeats the run."""
        shown = {**self._asdict(), "source": public_name(self.source)}
        left_out = {"algorithm", "processes"} | ({"tau", "target_rate"} if self.algorithm == "mc" else set())
        given = {name: value for name, value in shown.items() if name not in left_out}
        return command_line(self.algorithm, given, self.processes)


def train_values(
    run: ValueRun,
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
    """Learn values from offline episodes, save them with the behaviour policy, and put both on the Hub if asked to.

    Args:
        run: The run's settings. `algorithm` is `ilql` or `mc`; `task`, `source`, `revision` and `config` (None is the
            default one) name the data; `init` is the behaviour policy, a folder or a repository; `trunk` the model
            whose body the value trunk begins as (of a value policy, its value trunk), as `init` or `tiny`, `small` for
            random weights, and None is `init`. `steps` of the optimiser, or `epochs` over the data, of `batch_size`
            sequences per process in `accumulation` parts; `lr`, and its `schedule` (`constant`, or `linear` or
            `cosine` to 0) after `warmup_steps`, below 1 a share of all; `adam_beta2`; gradients are cut to
            `max_grad_norm`. `gamma`, `discount` (per `token` or `turn`), `reward_scale`,
            `cql_weight`; for ILQL the expectile `tau` and the `target_rate`. `beta` weighs the values when acting.
            `linear_heads`, `head_bias`, `q_vocab` (`all` tokens, or those of the dataset's actions) give the form of
            the heads. With a `lora_rank` the trunk is the behaviour policy's with an adapter, see
            `adapters.lora_settings` for this, `lora_alpha` and `lora_targets`. `eval_steps` and `eval_episodes` as in
            `trainers.bc.train_bc`. `processes` is filled in.
        output_dir: Folder of the run, see `trainers.runs`.
        env: As in `trainers.bc.train_bc`.
        report_to: As in `trainers.bc.train_bc`.
        push_to_hub: Repository to put the policy into.
        private: Make a new repository private.
        resume: Go on where the same command was interrupted; a finished run is only pushed.
        overwrite: Delete another run in the folder.
        token: As in `huggingface_hub`.

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
    check_env(run.task, run.eval_steps, env)
    if push_to_hub is not None and state.is_main_process:
        make_repository(push_to_hub, private=private, token=token)
    data = resolve(run.source, run.revision, token)
    run = run._replace(
        source=data.path, revision=data.revision, lora_rank=run.lora_rank or None, processes=state.num_processes
    )
    return carry_out(
        folder,
        run._asdict(),
        lambda checkpoint: _learn(run, folder, checkpoint, push_to_hub or folder.name, env, report_to, token),
        push_to_hub=push_to_hub,
        resume=resume,
        overwrite=overwrite,
        token=token,
    )


def _check(run: ValueRun) -> None:
    load_task(run.task)
    for name, allowed in (("algorithm", ALGORITHMS), ("q_vocab", Q_VOCABULARIES), ("schedule", SCHEDULES)):
        if getattr(run, name) not in allowed:
            raise ValueError(f"{name} is {getattr(run, name)!r}; allowed: {', '.join(allowed)}")
    check_discounting(Discounting(run.gamma, run.discount, run.reward_scale))
    for name in ("steps", "epochs", "batch_size", "accumulation", "lr"):
        value = getattr(run, name)
        if value is not None and not value > 0:
            raise ValueError(f"{name} is {value}; it must be above 0")
    if not 0 < run.tau < 1:
        raise ValueError(f"tau is {run.tau}; allowed are numbers between 0 and 1")
    lora = lora_settings(run.lora_rank, run.lora_alpha, run.lora_targets)
    if run.trunk is not None and lora is not None:
        raise ValueError(
            f"trunk is {run.trunk!r} and lora_rank is {run.lora_rank}; adapters are put on the behaviour policy's own "
            "body, so give one of the two"
        )
    if run.batch_size % run.accumulation:
        raise ValueError(f"batch size {run.batch_size} does not divide into {run.accumulation} parts of accumulation")


def _learn(
    run: ValueRun,
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
    episodes = read_episodes(spec, run.source, run.config, run.revision, token)
    model, tokenizer, base_model, behavior_folder = first_model(
        run.init, episodes, folder, max_length=run.max_length or 1024, seed=run.seed, token=token
    )
    renderer = make_renderer(
        model, tokenizer, spec, run.rendering, run.max_length, behavior_memory(behavior_folder, spec)
    )
    dataset = build_transitions(episodes, renderer, Discounting(run.gamma, run.discount, run.reward_scale))
    merged = merge_transitions(dataset, run.batch_size * state.num_processes, state.num_processes * run.accumulation)
    settings = HeadSettings(run.linear_heads, run.head_bias, token_ids(dataset) if run.q_vocab == "dataset" else None)
    steps = run.steps or max(1, math.ceil(run.epochs * len(dataset) / (run.batch_size * state.num_processes)))
    body = model if run.trunk is None else _other_body(run, tokenizer, model, token)
    torch.manual_seed(run.seed)
    lora = lora_settings(run.lora_rank, run.lora_alpha, run.lora_targets)
    trunk = trunk_of(body) if lora is None else lora_trunk(model, lora)
    common = trainer_arguments(
        folder,
        steps=steps,
        rows=(
            run.batch_size // run.accumulation
            if merged is dataset
            else len(merged) // (state.num_processes * run.accumulation)
        ),
        accumulation=run.accumulation,
        lr=run.lr,
        seed=run.seed,
        lengths=dataset["length"],
        memory=renderer.memory,
        report_to=report_to,
    )
    common |= {
        "lr_scheduler_type": run.schedule if run.warmup_steps == 0 else WITH_WARMUP[run.schedule],
        "warmup_steps": run.warmup_steps,
        "adam_beta2": run.adam_beta2,
        "max_grad_norm": run.max_grad_norm,
        "gamma": run.gamma,
        "discount": run.discount,
        "cql_weight": run.cql_weight,
    }
    measuring = None
    if run.eval_steps:
        measuring = Measuring(run.task, run.eval_steps, run.eval_episodes, _player(run, model, renderer, name), env)
        common |= measuring.arguments()
    given: dict[str, Any] = {
        "train_dataset": merged,
        "data_collator": transition_collator(_pad_id(tokenizer)),
        "eval_dataset": merged if measuring else None,  # the trainer asks for one; playing needs none
    }
    trainer: ValueTrainer
    if run.algorithm == "ilql":
        ilql_model = ILQLModel(trunk, settings, tau=run.tau, cql_weight=run.cql_weight)
        trainer = ILQLTrainer(ilql_model, ILQLConfig(**common, tau=run.tau, target_rate=run.target_rate), **given)
    else:
        mc_model = MCModel(trunk, settings, cql_weight=run.cql_weight)
        trainer = ValueTrainer(model=mc_model, args=ValueConfig(**common), **given)
    trainer.measuring, trainer.value_range = (
        measuring,
        (run.reward_scale * spec.min_return, run.reward_scale * spec.max_return),
    )
    train_until_stopped(trainer, checkpoint)
    record = PolicyRecord(
        algorithm=run.algorithm,
        task=run.task,
        task_version=spec.version,
        rendering=renderer.rendering,
        memory=renderer.memory,
        max_length=renderer.max_length,
        action_room=renderer.action_room,
        dataset=dataset_record(run.source, run.config, run.revision),
        base_model=base_model,
        seed=run.seed,
        training={
            "episodes": len(episodes),
            "sequences": len(dataset),
            "steps": steps,
            "batch_size": run.batch_size * state.num_processes,
            "learning_rate": run.lr,
            **outcome(trainer.state, run.eval_episodes),
        },
        kind="values",
        values={
            **settings._asdict(),
            "beta": run.beta,
            "q_heads": 2 if run.algorithm == "ilql" else 1,
            "trunk": None if run.trunk is None else body.config.to_dict(),
            **({} if lora is None else {"lora": lora._asdict()}),
        },
    )
    # All processes: what FSDP and ZeRO-3 divided among them is put together.
    acting = trainer.accelerator.unwrap_model(trainer.model).acting_state(keep=state.is_main_process)
    weights = None if lora is None else whole(state_without_adapters(model), keep=state.is_main_process)
    if state.is_main_process:
        card = render_card(record, spec, name, run.command())
        leave_policy(folder, model, tokenizer, record, trainer.state.log_history, card, acting, weights)
    return record


def _player(run: ValueRun, model: Any, renderer: Renderer, name: str) -> Callable[[Any], ValuePolicy]:
    """What plays with the values in training: the behaviour policy and they, as `lmrl eval` will."""

    def policy_of(values: ValueModel) -> ValuePolicy:
        return ValuePolicy(
            model.to(next(values.parameters()).device),
            renderer.tokenizer,
            renderer.spec,
            values=values,
            beta=run.beta,
            name=name,
            **reads_like(renderer),
        )

    return policy_of


def _other_body(run: ValueRun, tokenizer: Any, model: Any, token: str | bool | None) -> Any:
    """The model that the value trunk begins as, where it is not the behaviour policy."""
    assert run.trunk is not None
    positions = getattr(model.config.get_text_config(), "max_position_embeddings", None) or 1024
    if run.trunk in SIZES:
        return new_model(run.trunk, tokenizer, positions, seed=run.seed)
    found = find_policy(run.trunk, token=token)
    body = load_body(found)
    if AutoTokenizer.from_pretrained(found.folder).get_vocab() != tokenizer.get_vocab():
        raise ValueError(
            f"the trunk {run.trunk} has another tokenizer than the behaviour policy {run.init}; both read the same "
            "text, so take two models with one tokenizer"
        )
    return body


def _pad_id(tokenizer: Any) -> int:
    return int(tokenizer.pad_token_id if tokenizer.pad_token_id is not None else tokenizer.eos_token_id)
