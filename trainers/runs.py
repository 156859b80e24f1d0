"""One training run and its folder: settings that must not change halfway, first weights, checkpoints.

    <output>/run.json      the settings; the same command resumes, another one is refused
    <output>/start/        tokenizer (and nothing else) of a model made from nothing
    <output>/checkpoints/  of an unfinished run; gone once the policy is saved
    <output>/              the policy: weights, tokenizer, policy.json, README.md, training_log.json, curves.png

A module of its own, since every algorithm's command does the same.
"""

from __future__ import annotations

import ctypes
import json
import os
import shutil
import sys
import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch
from accelerate import PartialState
from torch import Tensor
from tqdm.auto import tqdm
from transformers import AutoModelForCausalLM, AutoTokenizer
from transformers.trainer_utils import get_last_checkpoint

from env_servers.task import TaskSpec
from env_servers.trajectory import Trajectory
from hub_datasets.load import load_trajectories
from trainers.curves import CURVES_NAME, LOG_NAME, Log, draw_curves, write_log
from trainers.load import RECORD_NAME, PolicyRecord, find_policy, push_policy, read_record, save_policy
from trainers.scratch import SIZES, episode_texts, new_model, train_tokenizer
from trainers.tokens import Memory, Renderer

RUN_NAME, CHECKPOINTS, START = "run.json", "checkpoints", "start"
# By malloc.h's numbers. M_MMAP_MAX 0: no tensor has a mapping of its own, which goes when it is freed;
# M_TRIM_THRESHOLD -1: the heap never shrinks; M_TOP_PAD: it grows by at least so many bytes.
MALLOPT = {-4: 0, -1: -1, -2: 256 << 20}


class Start(NamedTuple):
    """What a run begins with; `folder` holds the model, where it is not made from nothing."""

    model: Any
    tokenizer: Any
    base_model: dict[str, str | None] | None
    folder: Path | None = None


def public_name(source: str) -> str:
    """A dataset's or model's name for records; of a folder only the last part, since the path is nobody's business."""
    return Path(source).name if Path(source).is_dir() else source


def dataset_record(source: str, config: str | None, revision: str | None) -> dict[str, str | None]:
    """What a policy's record says of its data; the configuration only where it was chosen."""
    return {"source": public_name(source), "revision": revision, **({} if config is None else {"config": config})}


def command_line(algorithm: str, settings: Mapping[str, Any], processes: int) -> str:
    """The command that repeats a run: its settings as options, those that are None or False left out."""
    words = []
    for name, value in settings.items():
        option = f"--{'dataset' if name == 'source' else name.replace('_', '-')}"
        if value is True:
            words.append(option)
        elif value is not None and value is not False:
            words += [option, str(value)]
    many = f"torchrun --nproc_per_node {processes} -m trainers"
    return f"{'lmrl train' if processes == 1 else many} {algorithm} {' '.join(words)} --output my-policy"


def processes() -> PartialState:
    """The processes of this run, as accelerate sees them; every user of them in the project asks here.

    Without the flag `cpu`, processes that `torchrun` starts on a machine without accelerator each think they are
    alone, and all of them would write.
    """
    return PartialState(cpu=not torch.accelerator.is_available())


def keep_freed_memory() -> bool:
    """Have glibc's allocator keep freed memory for the next tensor, for as long as this process lives.

    By itself it gives each large tensor's memory back to the kernel, and a step of training then spends much of its
    time on having the same pages mapped and cleared again. A process that sets its own `MALLOC_` variables is
    overruled.

    Returns:
        Whether it was done: on Linux with glibc. Elsewhere (musl, macOS, Windows) nothing happens.
    """
    if sys.platform != "linux":
        return False
    library = ctypes.CDLL(None)
    if not (hasattr(library, "gnu_get_libc_version") and hasattr(library, "mallopt")):
        return False
    return all(library.mallopt(parameter, value) == 1 for parameter, value in MALLOPT.items())


class TrainResult(NamedTuple):
    """What came of a training.

    Attributes:
        folder: Holds the policy.
        revision: Commit on the Hub, None if it was not pushed (or by another process).
        loss: Last mean loss that was logged.
        main: Whether this is the main process of several; the one to speak of the result.
        seconds: Time to read the data, train and save; about 0 where the policy was there already.
    """

    folder: Path
    revision: str | None
    loss: float
    seconds: float
    main: bool


def carry_out(
    folder: Path,
    settings: Mapping[str, Any],
    learn: Callable[[str | None], PolicyRecord],
    *,
    push_to_hub: str | None,
    resume: bool,
    overwrite: bool,
    token: str | bool | None,
) -> TrainResult:
    """A run from its folder to the Hub: learn, unless the folder holds the policy already, and push it if asked to.

    Args:
        folder: Of the run.
        settings: As in `open_run`, as are `resume` and `overwrite`.
        learn: Trains and saves, from the checkpoint's folder it is given, or None; what the policy's record says.
        push_to_hub: Repository, which is there already, or None.
        resume: See there.
        overwrite: See there.
        token: As in `huggingface_hub`.

    Raises:
        FileExistsError: The folder holds something else.
        PermissionError: The Hub refused.
        ConnectionError: The Hub could not be reached.
    """
    state = processes()
    checkpoint = open_run(folder, settings, resume=resume, overwrite=overwrite)
    record, began = read_record(folder), time.monotonic()
    if record is None:
        record = learn(checkpoint)
    seconds = time.monotonic() - began
    sha = push_policy(folder, push_to_hub, token=token) if push_to_hub and state.is_main_process else None
    state.wait_for_everyone()
    return TrainResult(folder, sha, record.training["loss"], seconds, state.is_main_process)


def open_run(folder: Path, settings: Mapping[str, Any], *, resume: bool, overwrite: bool) -> str | None:
    """Make a folder the run's own, and find where it can go on.

    Args:
        folder: Of the run; made if missing.
        settings: Everything that changes what is learned. JSON values only.
        resume: Go on from the last checkpoint, where there is one.
        overwrite: Delete what another run left there.

    Returns:
        The last checkpoint's folder, or None to begin anew.

    Raises:
        FileExistsError: The folder holds a run with other settings, or files of something else.
    """
    state = processes()
    if state.is_main_process:
        _claim(folder, json.loads(json.dumps(settings)), resume, overwrite)
    state.wait_for_everyone()
    checkpoints = folder / CHECKPOINTS
    last: Any = get_last_checkpoint
    return last(str(checkpoints)) if checkpoints.is_dir() else None


def _claim(folder: Path, settings: dict[str, Any], resume: bool, overwrite: bool) -> None:
    path = folder / RUN_NAME
    if folder.is_dir() and any(folder.iterdir()):
        if not path.exists() and not overwrite:
            raise FileExistsError(f"{folder} holds files but no run; choose another --output, or pass --overwrite")
        before = json.loads(path.read_text(encoding="utf-8")) if path.exists() else None
        differing = [name for name in settings if before is None or before.get(name) != settings[name]]
        if differing and not overwrite:
            assert before is not None
            changes = ", ".join(f"{name} was {before.get(name)!r}, is {settings[name]!r}" for name in differing)
            raise FileExistsError(
                f"{folder} holds a run with other settings ({changes}); choose another --output, or pass --overwrite"
            )
        if differing or not resume or overwrite:
            _delete_run(folder)
    folder.mkdir(parents=True, exist_ok=True)
    aside = path.with_suffix(".tmp")
    aside.write_text(json.dumps(settings, indent=2) + "\n", encoding="utf-8")
    os.replace(aside, path)


def _delete_run(folder: Path) -> None:
    for path in (folder / name for name in (RECORD_NAME, RUN_NAME, LOG_NAME, CURVES_NAME)):
        path.unlink(missing_ok=True)
    for name in (CHECKPOINTS, START):
        shutil.rmtree(folder / name, ignore_errors=True)


def read_episodes(
    spec: TaskSpec, source: str, config: str | None, revision: str | None, token: str | bool | None
) -> list[Trajectory]:
    """The training episodes of a dataset, which must be of the task.

    Args:
        spec: Of the task.
        source: As in `hub_datasets.load.load_episodes`, as are the others.
        config: Configuration; None is the dataset's default one.
        revision: Commit of a repository.
        token: As in `huggingface_hub`.

    Raises:
        ValueError: There are episodes of another task, or there is no such configuration.
        FileNotFoundError: There is no such dataset.
    """
    loaded = load_trajectories(source, "train", config=config, revision=revision, token=token)
    episodes = list(tqdm(loaded, desc="Reading episodes", unit="", disable=not processes().is_main_process))
    _check_episodes(episodes, spec, source)
    return episodes


def _check_episodes(episodes: Sequence[Trajectory], spec: TaskSpec, source: str) -> None:
    """Raise a ValueError for episodes of another task; warn of those of another version of it."""
    others = sorted({episode.task for episode in episodes} - {spec.id})
    if others:
        raise ValueError(f"dataset {source} holds episodes of {', '.join(others)}, not of {spec.id}; give its own task")
    versions = sorted({episode.task_version for episode in episodes} - {spec.version})
    if versions:
        warnings.warn(
            f"dataset {source} was played under version {', '.join(versions)} of {spec.id}, this is {spec.version}: "
            "the policy may learn texts that its evaluation does not have",
            stacklevel=4,
        )


def behavior_memory(folder: Path | None, spec: TaskSpec) -> Memory:
    """How much of the past the behaviour policy in a folder reads: what it was trained with, or the task's own."""
    record = None if folder is None else read_record(folder)
    return record.memory if record is not None and record.task == spec.id else "task"


def make_renderer(
    model: Any,
    tokenizer: Any,
    spec: TaskSpec,
    rendering: str | None,
    max_length: int | None,
    memory: Memory = "task",
) -> Renderer:
    """How a run's model reads episodes, where the settings leave open what suits it: chat if its tokenizer has a
    template, and as many tokens as it has positions, at most 1,024."""
    positions = getattr(model.config.get_text_config(), "max_position_embeddings", None) or 1024
    suited = "chat" if tokenizer.chat_template else "plain"
    limit = max_length or min(positions, 1024)
    return Renderer(tokenizer, spec, rendering or suited, max_length=limit, memory=memory)


def trainer_arguments(
    folder: Path,
    *,
    steps: int,
    rows: int,
    accumulation: int,
    lr: float,
    seed: int,
    lengths: Sequence[int],
    memory: int | None,
    report_to: str,
) -> dict[str, Any]:
    """The part of `transformers.TrainingArguments` that is alike in all runs.

    Args:
        folder: Of the run.
        steps: Of the optimiser.
        rows: In one part of a batch, per process.
        accumulation: Parts of a batch.
        lr: Peak learning rate.
        seed: Of the order.
        lengths: Of all sequences, in tokens.
        memory: Turns of the past in them.
        report_to: Where the trainer's callbacks send what is logged.
    """
    return {
        "output_dir": str(folder / CHECKPOINTS),
        "run_name": folder.name,
        "max_steps": steps,
        "per_device_train_batch_size": rows,
        "gradient_accumulation_steps": accumulation,
        "learning_rate": lr,
        "seed": seed,
        "use_cpu": processes().device.type == "cpu",
        "logging_steps": max(10, steps // 20),
        "save_steps": max(100, steps // 10),
        "save_total_limit": 2,
        # Only where much padding is saved. And of single turns those of one length are of one kind: in Text-Nav all
        # that win would be in the same few batches, and little would be learned of them.
        "train_sampling_strategy": "group_by_length" if memory != 0 and is_ragged(lengths) else "random",
        "report_to": report_to.split(","),
    }


def is_ragged(lengths: Sequence[int]) -> bool:
    """Whether padding to the longest would be more than half of a batch."""
    return max(lengths) > 2 * sum(lengths) / len(lengths)


def outcome(state: Any, episodes: int) -> dict[str, float]:
    """What a trainer's state says of the run, for the policy's record: the last loss that was logged (of all steps
    where the run was too short for that), and where it played `episodes`, the best mean return and its step."""
    logged = [log["loss"] for log in state.log_history if "loss" in log]
    found = {"loss": float(logged[-1] if logged else state.log_history[-1]["train_loss"])}
    if state.best_metric is not None:
        found |= {"best_return": float(state.best_metric), "best_step": state.best_global_step}
        found |= {"eval_steps": state.eval_steps, "eval_episodes": episodes}
    return found


def total_count(trainer: Any, counts: Sequence[Tensor], device: torch.device) -> Tensor:
    """The sum over a step's batches, and over all processes where the trainer's loss is a mean over theirs."""
    count = torch.stack(list(counts)).sum().to(device)
    if trainer.args.average_tokens_across_devices and trainer.args.world_size > 1:
        count = trainer.accelerator.gather(count).sum()
    return count


def leave_policy(
    folder: Path,
    model: Any,
    tokenizer: Any,
    record: PolicyRecord,
    log: Log,
    card: str,
    values: Mapping[str, Tensor] | None = None,
    weights: Mapping[str, Tensor] | None = None,
) -> None:
    """End a run: card, log, curves and policy into its folder; then its checkpoints and first tokenizer go.

    Args:
        folder: Of the run.
        model: As in `trainers.load.save_policy`.
        tokenizer: As there.
        record: As there.
        log: What the trainer logged.
        card: Text of README.md.
        values: As in `save_policy`.
        weights: As there.
    """
    folder.joinpath("README.md").write_text(card, encoding="utf-8")
    write_log(folder, log)
    draw_curves(folder / CURVES_NAME, log)
    save_policy(folder, model, tokenizer, record, values, weights)
    for name in (CHECKPOINTS, START):
        shutil.rmtree(folder / name, ignore_errors=True)


def first_model(
    init: str,
    trajectories: Sequence[Trajectory],
    folder: Path,
    *,
    max_length: int,
    seed: int,
    token: str | bool | None = None,
) -> Start:
    """The model and tokenizer that training begins with.

    Args:
        init: `tiny` or `small` (random weights, and a tokenizer learned from the episodes), or a folder or Hub
            repository (optionally `@revision`).
        trajectories: Episodes to learn a tokenizer from.
        folder: Of the run; the learned tokenizer is kept there, so that all processes and a resumed run share it.
        max_length: Positions of a model made from nothing.
        seed: Of its weights.
        token: As in `huggingface_hub`.

    Raises:
        FileNotFoundError: There is no such folder or repository.
    """
    if init not in SIZES:
        found = find_policy(init, token=token)
        tokenizer = AutoTokenizer.from_pretrained(found.folder)
        model = AutoModelForCausalLM.from_pretrained(found.folder, dtype="float32")
        # Of a folder only its name goes into records: its path is nobody's business.
        local = Path(init).is_dir()
        source = {
            "source": found.name if local else init.partition("@")[0],
            "revision": None if local else found.revision,
        }
        return Start(model, tokenizer, source, found.folder)
    kept = folder / START
    with processes().main_process_first():
        if not kept.exists():
            aside = folder / f".{START}"
            train_tokenizer(episode_texts(trajectories)).save_pretrained(aside)
            os.replace(aside, kept)
    tokenizer = AutoTokenizer.from_pretrained(kept)
    return Start(new_model(init, tokenizer, max_length, seed=seed), tokenizer, None)
