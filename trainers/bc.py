"""Behaviour cloning, and filtered behaviour cloning: learn to say what the data's agent said.

The loss is the mean cross entropy of the agent's tokens, terminators included; what the environment says is context
only. Over a batch, and over all batches of a gradient step,

    loss = sum_t mask_t CE_t / sum_t mask_t,

(LMRL-Gym, arXiv 2311.18232, section 5; their JaxSEQ's masked loss), so every action token weighs the same wherever
its sequence ends up. Filtered BC is BC on the best part of the episodes, by success or by return.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor
from trl.trainer.sft_config import SFTConfig
from trl.trainer.sft_trainer import SFTTrainer

from env_servers.tasks import load_task
from hub_datasets.load import resolve
from trainers.adapters import lora_config, lora_settings
from trainers.filters import check_rule, filter_trajectories
from trainers.finish import finish, record_of
from trainers.load import PolicyRecord, make_repository
from trainers.monitor import Measured, Measuring, check_env, reads_like, train_until_stopped
from trainers.policy import LanguageModelPolicy
from trainers.runs import (
    TrainResult,
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
    total_count,
    trainer_arguments,
)
from trainers.sequences import build_dataset, merge_repeated, row_collator
from trainers.sharding import sharding_checkpoints
from trainers.tokens import IGNORED, Memory


def bc_loss(logits: Tensor, targets: Tensor, weights: Tensor, count: Tensor | int) -> Tensor:
    """Summed cross entropy of the targets over their number.

    Args:
        logits: At the positions before the targets, shape (B, K, V).
        targets: Token ids, -100 where there is no loss; shape (B, K).
        weights: How often each row counts, shape (B,).
        count: What to divide by: the number of targets in all batches of the gradient step.

    Returns:
        A scalar; 0 where there are no targets.
    """
    losses = F.cross_entropy(logits.transpose(1, 2).float(), targets, ignore_index=IGNORED, reduction="none")
    return (losses.sum(1) * weights).sum() / torch.as_tensor(count, device=losses.device).clamp(min=1)


class Imitated(NamedTuple):
    """What `imitate` finds: the loss, and weighted numbers of targets that are the likeliest token, and of all."""

    loss: Tensor
    right: Tensor
    targets: Tensor


def imitate(
    model: Any, inputs: Mapping[str, Tensor], count: Tensor | int | None, weights: Tensor | None = None
) -> Imitated:
    """The loss of a batch of rows, by the head at those columns alone in which some row has a target.

    Args:
        model: A causal language model whose `forward` takes `logits_to_keep`.
        inputs: `input_ids`, `attention_mask` and `labels`, each (B, T).
        count: As in `bc_loss`; None is the batch's own number of targets.
        weights: As there; None is 1.
    """
    targets = inputs["labels"][:, 1:]
    weights = torch.ones_like(targets[:, 0]) if weights is None else weights
    columns = (targets != IGNORED).any(0).nonzero()[:, 0]
    targets = targets[:, columns]
    logits = model(
        input_ids=inputs["input_ids"],
        attention_mask=inputs["attention_mask"],
        logits_to_keep=columns,
        use_cache=False,
    ).logits
    acts = targets != IGNORED
    here = (acts.sum(1) * weights).sum()
    loss = bc_loss(logits, targets, weights, here if count is None else count)
    right = (((logits.detach().argmax(-1) == targets) & acts).sum(1) * weights).sum()
    return Imitated(loss, right, here)


@dataclass
class BCConfig(SFTConfig):
    """TRL's `SFTConfig` with other defaults.

    The learning rate and Adam's betas are LMRL-Gym's (Table 3); bfloat16 and gradient checkpointing are on where
    there is a GPU that does them, off on a CPU, where both cost time.
    """

    learning_rate: float = field(default=1e-4, metadata={"help": "Peak learning rate."})
    adam_beta2: float = field(default=0.95, metadata={"help": "Adam's second beta."})
    warmup_steps: float = field(default=0.05, metadata={"help": "Steps of linear warm-up; below 1, share of all."})
    gradient_checkpointing: bool | None = field(  # type: ignore[assignment]
        default=None, metadata={"help": "Recompute activations to save memory; None is only on a GPU."}
    )
    dataset_kwargs: dict[str, Any] | str | None = field(
        default_factory=lambda: {"skip_prepare_dataset": True},
        metadata={"help": "The dataset is tokenised and cut by `build_dataset` already."},
    )

    def __post_init__(self) -> None:
        on_gpu = torch.cuda.is_available() and not self.use_cpu
        if self.bf16 is None:
            self.bf16 = not self.fp16 and on_gpu and torch.cuda.is_bf16_supported()
        if self.gradient_checkpointing is None and self.activation_checkpointing is None:
            self.activation_checkpointing = on_gpu and not sharding_checkpoints()
        self.remove_unused_columns = False  # the trainer's collator takes what it needs
        self.dataloader_pin_memory = self.dataloader_pin_memory and on_gpu
        super().__post_init__()  # type: ignore[no-untyped-call]


class BCTrainer(Measured, SFTTrainer):
    """TRL's `SFTTrainer` on the sequences of `build_dataset`, with the same arguments. With `measuring` it evaluates
    by playing, see `trainers.monitor`.

    On a CPU, TRL's fused head scores every position; here only the columns in which some row has a target go
    through the head. Elsewhere the loss is TRL's, which is the same number.

    Raises:
        ValueError: A dataset lacks `input_ids` or `labels`.
    """

    _tag_names = ["lmrl", "bc"]  # noqa: RUF012 (as in the base class)
    _name = "BC"

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        for name in ("train_dataset", "eval_dataset"):
            given = kwargs.get(name)
            for dataset in given.values() if isinstance(given, dict) else [given]:
                columns = getattr(dataset, "column_names", None)
                if columns is not None and not {"input_ids", "labels"} <= set(columns):
                    raise ValueError(
                        f"{name} has the columns {', '.join(columns)}; BC needs input_ids and labels, which "
                        "trainers.sequences.build_dataset makes from trajectories"
                    )
        kwargs.setdefault("data_collator", row_collator(kwargs["processing_class"]))
        super().__init__(*args, **kwargs)
        inner = self.accelerator.unwrap_model(self.model)
        inner = inner.get_base_model() if hasattr(inner, "get_base_model") else inner  # PEFT's has none of the names
        self._keeps_columns = "logits_to_keep" in inspect.signature(inner.forward).parameters

    def get_batch_samples(self, epoch_iterator: Any, num_batches: int, device: torch.device) -> Any:
        """The batches of one gradient step and the number of targets in them, weights included."""
        batches, count = super().get_batch_samples(epoch_iterator, num_batches, device)
        if batches and "weight" in batches[0]:
            counts = [((batch["labels"] != IGNORED).sum(1) * batch["weight"]).sum() for batch in batches]
            count = total_count(self, counts, device)
        return batches, count

    def compute_loss(
        self,
        model: Any,
        inputs: dict[str, Tensor],
        return_outputs: bool = False,
        num_items_in_batch: Tensor | int | None = None,
    ) -> Any:
        """The loss of one batch with `input_ids`, `attention_mask`, `labels`, each (B, T), as `Trainer` wants it."""
        weights = inputs.pop("weight", None)
        if weights is None and (inputs["labels"].device.type != "cpu" or return_outputs or not self._keeps_columns):
            base: Any = super()
            return base.compute_loss(model, inputs, return_outputs, num_items_in_batch)
        found = imitate(model, inputs, num_items_in_batch, weights)
        loss = found.loss
        if self.args.average_tokens_across_devices and num_items_in_batch is not None:
            loss = loss * self.accelerator.num_processes  # DDP takes the mean over processes, the count is of all
        mode = "train" if model.training else "eval"
        self._metrics[mode]["mean_token_accuracy"].append((found.right / found.targets.clamp(min=1)).item())
        return loss


class Recipe(NamedTuple):
    """How long and how fast to train, where the caller does not say."""

    lr: float
    batch_size: int
    epochs: float
    min_steps: int


# `tiny` is so small that it needs, and survives, large steps, and where a sequence is one turn, large batches.
# The rest is LMRL-Gym's Table 3.
TINY = Recipe(5e-3, 1024, 3, 400)
TINY_WITH_HISTORY = Recipe(2e-3, 128, 3, 400)
PRETRAINED = Recipe(1e-4, 128, 3, 1)


class Settings(NamedTuple):
    """What decides on the policy that a run makes; kept in `run.json`."""

    task: str
    source: str
    revision: str | None
    init: str
    filter: str | None
    rendering: str | None
    steps: int | None
    epochs: float | None
    batch_size: int
    accumulation: int
    lr: float
    max_length: int | None
    eval_steps: int
    eval_episodes: int
    seed: int
    processes: int
    memory: int | None = None
    lora_rank: int | None = None
    lora_alpha: float | None = None
    lora_targets: str | None = None
    config: str | None = None

    def command(self) -> str:
        """The command line that repeats the run."""
        shown = {**self._asdict(), "source": public_name(self.source)}
        return command_line("bc", {name: v for name, v in shown.items() if name != "processes"}, self.processes)


def train_bc(
    task: str,
    source: str,
    output_dir: str | Path,
    *,
    config: str | None = None,
    revision: str | None = None,
    init: str = "tiny",
    rule: str | None = None,
    rendering: str | None = None,
    steps: int | None = None,
    epochs: float | None = None,
    batch_size: int | None = None,
    accumulation: int = 1,
    lr: float | None = None,
    max_length: int | None = None,
    memory: int | None = None,
    eval_steps: int = 0,
    eval_episodes: int = 128,
    seed: int = 0,
    lora_rank: int | None = None,
    lora_alpha: float | None = None,
    lora_targets: str | None = None,
    env: str | None = None,
    report_to: str = "none",
    push_to_hub: str | None = None,
    private: bool = False,
    resume: bool = True,
    overwrite: bool = False,
    token: str | bool | None = None,
) -> TrainResult:
    """Train a policy by (filtered) behaviour cloning, save it, and put it on the Hub if asked to.

    It runs under `torchrun` or `accelerate launch` as well; then the main process saves and pushes. (On a CPU take
    `torchrun`: `accelerate launch --cpu` starts one process, whatever number it is told, unless there is MPI.)

    Args:
        task: Task id.
        source: Dataset of its episodes: task id, folder, or Hub repository.
        output_dir: Folder of the run, see `trainers.runs`.
        config: Configuration of the dataset; None is its default one.
        revision: Of the dataset on the Hub.
        init: `tiny`, `small`, a folder, or a model on the Hub.
        rule: Filter, as in `filter_trajectories`; None keeps all.
        rendering: `plain` or `chat`; None is chat for a model whose tokenizer has a chat template.
        steps: Gradient steps; None goes by `epochs`.
        epochs: Passes over the data; None is 3, and at least 400 steps for `tiny`.
        batch_size: Sequences per process and gradient step, divided among `accumulation` parts; None is 1024 for
            `tiny` on a task whose newest observation is all that it reads, else 128.
        accumulation: Parts that a batch is computed in, to save memory; it does not change the result.
        lr: Peak learning rate; None is 5e-3 for `tiny` there, 2e-3 for `tiny` elsewhere, else 1e-4.
        max_length: Most tokens of a sequence; None is the model's limit, at most 1024.
        memory: Turns of the past that the policy reads; None is what the task says.
        eval_steps: Play episodes after every so many steps, and keep the weights with the best mean return, see
            `trainers.monitor`; 0 does not play, and keeps the last weights.
        eval_episodes: How many.
        env: Servers that these are played on, see `env_servers.client.remote_envs`; None plays them here. It changes
            no result.
        seed: Of first weights and order.
        report_to: Trackers that get what is logged: `none`, `tensorboard`, `wandb`, `trackio`, or several by commas.
        lora_rank: Learn adapters of this rank, which are merged into the weights at the end; None or 0 learns all
            weights. `lora_alpha` and `lora_targets` as in `adapters.lora_settings`.
        lora_alpha: Scale of the adapters.
        lora_targets: Layers that get one.
        push_to_hub: Repository to put the policy into.
        private: Make a new repository private.
        resume: Go on where the same command was interrupted; a finished run is only pushed.
        overwrite: Delete another run in the folder.
        token: As in `huggingface_hub`.

    Raises:
        ValueError: An argument has a value it does not take, or the data is of another task.
        FileExistsError: The folder holds something else.
        FileNotFoundError: There is no such dataset, model or repository.
        PermissionError: The Hub refused.
        ConnectionError: The Hub could not be reached.
        EpisodeError: The servers could not, or do not play the task as it is here.
        KeyboardInterrupt: It was stopped; the same call goes on from there.
    """
    folder, state = Path(output_dir), processes()
    tiny = TINY if load_task(task).spec.memory == 0 else TINY_WITH_HISTORY
    recipe = tiny if init == "tiny" else PRETRAINED
    if steps is not None and epochs is not None:
        raise ValueError(f"both steps ({steps}) and epochs ({epochs}) are given; give one of them")
    for option, value in {"steps": steps, "epochs": epochs, "batch_size": batch_size, "lr": lr}.items():
        if value is not None and not value > 0:
            raise ValueError(f"{option} is {value}; it must be above 0")
    if rule is not None:
        check_rule(rule)
    lora_settings(lora_rank, lora_alpha, lora_targets)
    check_env(task, eval_steps, env)
    if push_to_hub is not None and state.is_main_process:
        make_repository(push_to_hub, private=private, token=token)
    data = resolve(source, revision, token)
    settings = Settings(
        task=task,
        source=data.path,
        revision=data.revision,
        init=init,
        filter=rule,
        rendering=rendering,
        steps=steps,
        epochs=epochs,
        batch_size=batch_size or recipe.batch_size,
        accumulation=accumulation,
        lr=lr or recipe.lr,
        max_length=max_length,
        eval_steps=eval_steps,
        eval_episodes=eval_episodes,
        seed=seed,
        processes=state.num_processes,
        memory=memory,
        lora_rank=lora_rank or None,
        lora_alpha=lora_alpha,
        lora_targets=lora_targets,
        config=config,
    )
    if settings.batch_size % accumulation:
        raise ValueError(f"batch size {settings.batch_size} does not divide into {accumulation} parts of accumulation")
    name = push_to_hub or folder.name
    return carry_out(
        folder,
        settings._asdict(),
        lambda checkpoint: _learn(settings, folder, checkpoint, recipe, name, env, report_to, token),
        push_to_hub=push_to_hub,
        resume=resume,
        overwrite=overwrite,
        token=token,
    )


def _learn(
    settings: Settings,
    folder: Path,
    checkpoint: str | None,
    recipe: Recipe,
    name: str,
    env: str | None,
    report_to: str,
    token: str | bool | None,
) -> PolicyRecord:
    """Read the data, train, save; what `train_bc` does when the folder holds no policy yet."""
    spec, state = load_task(settings.task).spec, processes()
    if state.device.type == "cpu":
        keep_freed_memory()
    episodes = read_episodes(spec, settings.source, settings.config, settings.revision, token)
    kept = episodes if settings.filter is None else filter_trajectories(episodes, settings.filter)
    model, tokenizer, base_model, _ = first_model(
        settings.init, episodes, folder, max_length=settings.max_length or 1024, seed=settings.seed, token=token
    )
    memory: Memory = "task" if settings.memory is None else settings.memory
    renderer = make_renderer(model, tokenizer, spec, settings.rendering, settings.max_length, memory)
    dataset = build_dataset(kept, renderer)
    steps = settings.steps
    if steps is None:
        per_epoch = math.ceil(len(dataset) / (settings.batch_size * state.num_processes))
        least = recipe.min_steps if settings.epochs is None else 1
        steps = max(math.ceil((settings.epochs or recipe.epochs) * per_epoch), least)
    parts = state.num_processes * settings.accumulation
    merged = merge_repeated(dataset, settings.batch_size * state.num_processes, multiple_of=parts)
    per_part = settings.batch_size // settings.accumulation if merged is dataset else len(merged) // parts
    common = trainer_arguments(
        folder,
        steps=steps,
        rows=per_part,
        accumulation=settings.accumulation,
        lr=settings.lr,
        seed=settings.seed,
        lengths=dataset["length"],
        memory=renderer.memory,
        report_to=report_to,
    )

    def policy_of(trained: Any) -> LanguageModelPolicy:
        return LanguageModelPolicy(trained, tokenizer, spec, name=name, **reads_like(renderer))

    measuring = None
    if settings.eval_steps:
        measuring = Measuring(spec.id, settings.eval_steps, settings.eval_episodes, policy_of, env)
        common |= measuring.arguments()
    lora = lora_settings(settings.lora_rank, settings.lora_alpha, settings.lora_targets)
    given = {
        "train_dataset": merged,
        "eval_dataset": merged if measuring else None,  # the trainer asks for one; playing needs none
        "peft_config": None if lora is None else lora_config(model, lora, task_type="CAUSAL_LM"),
    }
    trainer = BCTrainer(model=model, args=BCConfig(**common), processing_class=tokenizer, **given)
    trainer.measuring = measuring
    train_until_stopped(trainer, checkpoint)
    record = record_of(
        "bc" if settings.filter is None else "filtered_bc",
        renderer,
        base_model=base_model,
        seed=settings.seed,
        training={
            "episodes": len(kept),
            "sequences": len(dataset),
            "steps": steps,
            "batch_size": settings.batch_size * state.num_processes,
            "learning_rate": settings.lr,
            **outcome(trainer.state, settings.eval_episodes),
        },
        dataset=dataset_record(settings.source, settings.config, settings.revision),
        filter=settings.filter,
    )
    return finish(trainer, folder, renderer, record, name=name, command=settings.command())
