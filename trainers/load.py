"""Policies in folders and on the Hub: `save_policy`, `load_policy`, and `policy.json`, which stands by the weights.

A policy is a Hugging Face model, so every tool that reads one reads it. `policy.json` adds what weights and
tokenizer do not say: task, rendering, memory, lengths, and what the policy was trained on. A model without it, any
on the Hub, loads too: with the chat rendering if its tokenizer has a chat template, else plain.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field, fields
from glob import escape
from importlib.metadata import version
from pathlib import Path
from typing import Any, NamedTuple

import torch
from huggingface_hub import HfApi, snapshot_download
from huggingface_hub.errors import OfflineModeIsEnabled
from safetensors.torch import load_file, save_file
from torch import Tensor
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer

from env_servers.tasks import load_task, unknown
from hub_datasets.hub import HUB_ERRORS, explain, with_retries
from trainers.adapters import LoraSettings
from trainers.curves import LOG_NAME
from trainers.policy import LanguageModelPolicy, Sampling
from trainers.tokens import RENDERINGS
from trainers.value_policy import ValuePolicy
from trainers.values import HeadSettings, ValueModel, lora_trunk, trunk_of

RECORD_NAME, VALUES_NAME = "policy.json", "values.safetensors"
FORMAT = 2  # 2 added `values`
DTYPES = ("auto", "float32", "bfloat16", "float16")
# What decides on a policy's words; cards and logs beside it do not.
POLICY_FILES = (".safetensors", ".bin", ".json", ".jinja", ".model", ".txt")
NOT_PUSHED = ("run.json", "trainer_state.json")
NOT_POLICY = (*NOT_PUSHED, LOG_NAME)


@dataclass(frozen=True)
class PolicyRecord:
    """The contents of `policy.json`.

    Attributes:
        algorithm: `bc`, `filtered_bc`, `ilql`, `mc`, `ppo`, `grpo`, `online_bc` or `online_ilql`.
        task: Task id.
        task_version: Version of the task's rules and texts that it was trained under.
        rendering: `plain` or `chat`.
        memory: Turns of the past that it reads, None is all.
        max_length: Most tokens of prompt and action together.
        action_room: Tokens of those kept for the action, and the longest action it says.
        dataset: `source` and `revision` of its training data, and `config` where one was chosen; no source where it
            learned from its own episodes alone.
        filter: Rule that the training data was filtered by, or None.
        base_model: `source` and `revision` of the model it began as, or None for one made from nothing.
        seed: Of training.
        training: Numbers of the training, such as its steps and last loss.
        kind: Key of `POLICIES`.
        values: Of a value policy: the form of its heads (`values.HeadSettings`), their number `q_heads`, and `beta`;
            `lora` (`adapters.LoraSettings`) where the trunk is the behaviour policy's with an adapter.
        versions: Of the packages at work.
        format: Version of this form.
    """

    algorithm: str
    task: str
    task_version: str
    rendering: str
    memory: int | None
    max_length: int
    action_room: int
    dataset: Mapping[str, str | None]
    filter: str | None = None
    base_model: Mapping[str, str | None] | None = None
    seed: int = 0
    training: Mapping[str, float] = field(default_factory=dict)
    kind: str = "causal_lm"
    values: Mapping[str, Any] | None = None
    versions: Mapping[str, str] = field(default_factory=lambda: package_versions())
    format: int = FORMAT


def package_versions() -> dict[str, str]:
    """Versions of the packages that training and acting depend on."""
    return {name: version(name) for name in ("lmrl", "torch", "transformers", "trl", "peft", "datasets")}


def save_policy(
    folder: Path,
    model: Any,
    tokenizer: Any,
    record: PolicyRecord,
    values: Mapping[str, Tensor] | None = None,
    weights: Mapping[str, Tensor] | None = None,
) -> None:
    """Write weights, tokenizer and `policy.json` into a folder; of a value policy also `values.safetensors`.

    Everything is written aside first and moved in at the end, `policy.json` last, so a folder with that file is
    whole.

    Args:
        folder: Made if missing.
        model: The causal language model.
        tokenizer: Its tokenizer.
        record: Goes into `policy.json`.
        values: What a value model acts with.
        weights: The model's, where its own are in parts or have adapters; None is its own.
    """
    folder.mkdir(parents=True, exist_ok=True)
    aside = Path(tempfile.mkdtemp(prefix=".policy-", dir=folder))
    try:
        model.save_pretrained(aside, **({} if weights is None else {"state_dict": dict(weights)}))
        tokenizer.save_pretrained(aside)
        _check_saved_tokenizer(aside, tokenizer, load_task(record.task).spec.instructions)
        if values is not None:
            save_file({name: tensor.contiguous() for name, tensor in values.items()}, aside / VALUES_NAME)
        (folder / RECORD_NAME).unlink(missing_ok=True)
        for file in sorted(aside.iterdir()):
            os.replace(file, folder / file.name)
        (aside / RECORD_NAME).write_text(json.dumps(asdict(record), indent=2) + "\n", encoding="utf-8")
        os.replace(aside / RECORD_NAME, folder / RECORD_NAME)
    finally:
        shutil.rmtree(aside, ignore_errors=True)


def _check_saved_tokenizer(folder: Path, tokenizer: Any, text: str) -> None:
    """Make sure that the saved tokenizer reads as the one in use: by the model's type transformers may take a class
    that puts its own rules in the place of the saved ones.

    Raises:
        ValueError: It does not.
    """
    saved = AutoTokenizer.from_pretrained(folder)
    if saved(text)["input_ids"] != tokenizer(text)["input_ids"]:
        raise ValueError(
            f"the tokenizer, saved beside this model, is read back as {type(saved).__name__} and gives other tokens, "
            "so the policy would not read what it was trained on; take the model's own tokenizer, or another "
            "architecture for this one"
        )


def read_record(folder: Path) -> PolicyRecord | None:
    """The record in a policy's folder, None if there is none.

    Raises:
        ValueError: It is no such record, or of a format, kind or rendering that this version does not know.
    """
    path = folder / RECORD_NAME
    if not path.exists():
        return None
    try:
        values = json.loads(path.read_text(encoding="utf-8"))
    except json.JSONDecodeError as error:
        raise ValueError(f"{path} is not JSON ({error}); fetch or train the policy again") from error
    if not isinstance(values, dict) or not isinstance(values.get("format"), int):
        raise ValueError(f"{path} has no format number, so it is no policy record; fetch or train the policy again")
    if values["format"] > FORMAT:
        raise ValueError(f"{path} has format {values['format']}, and this lmrl reads up to {FORMAT}; update lmrl")
    values = {"values": None, **values}  # format 1 had none
    names = [entry.name for entry in fields(PolicyRecord)]
    missing = [name for name in names if name not in values]
    if missing:
        raise ValueError(f"{path} lacks {', '.join(missing)}; a record has {', '.join(names)}")
    if values["kind"] not in POLICIES:
        raise ValueError(f"{path}: {unknown('kind of policy', str(values['kind']), POLICIES)}")
    if values["rendering"] not in RENDERINGS:
        raise ValueError(f"{path}: {unknown('rendering', str(values['rendering']), RENDERINGS)}")
    return PolicyRecord(**{name: values[name] for name in names})


class Found(NamedTuple):
    """A policy's files: their folder, the name for records, and the commit or hash they are."""

    folder: Path
    name: str
    revision: str


def find_policy(source: str, revision: str | None = None, token: str | bool | None = None) -> Found:
    """The files of a policy or model; those on the Hub are downloaded.

    Args:
        source: Folder, or `namespace/name` on the Hub, optionally with `@revision`.
        revision: Branch, tag or commit on the Hub.
        token: As in `huggingface_hub`; None takes the ambient one.

    Raises:
        ValueError: A folder with a revision.
        FileNotFoundError: There is no such folder, repository or revision, or no model in it.
        PermissionError: The repository is gated, or the token is not known.
        ConnectionError: The Hub could not be reached.
    """
    if Path(source).is_dir():
        if revision is not None:
            raise ValueError(f"{source} is a folder, so it has no revision {revision!r}; leave the revision out")
        folder = Path(source).resolve()
        if not (folder / "config.json").exists():
            raise FileNotFoundError(f"{source} holds no model (no config.json); give the folder a policy was saved in")
        return Found(folder, folder.name, hash_policy(folder))
    repo, _, given = source.partition("@")
    revision = revision or given or None
    if repo.startswith((".", "/", "~")) or repo.count("/") > 1:
        raise FileNotFoundError(f"there is no folder {source!r}; give a policy's folder, or namespace/name on the Hub")
    try:
        info = HfApi(token=token).model_info(repo, revision=revision)
        names = [entry.rfilename for entry in info.siblings or [] if "/" not in entry.rfilename]
        wanted = [name for name in names if name.endswith(POLICY_FILES)]
        if any(name.endswith(".safetensors") for name in names):
            wanted = [name for name in wanted if not name.endswith(".bin")]
        patterns = [escape(name) for name in wanted]
        folder = Path(snapshot_download(repo, revision=info.sha, token=token, allow_patterns=patterns))
    except OfflineModeIsEnabled:
        try:
            folder = Path(snapshot_download(repo, revision=revision, local_files_only=True))
        except FileNotFoundError as error:
            raise FileNotFoundError(
                f"HF_HUB_OFFLINE is set and model {repo} is not in the cache; unset it, or give a folder"
            ) from error
    except HUB_ERRORS as error:
        raise explain(error, f"model {repo}", revision) from error
    if not (folder / "config.json").exists():
        raise FileNotFoundError(f"model {repo} has no config.json, so transformers cannot load it")
    return Found(folder, f"{repo}@{folder.name[:8]}", folder.name)


def hash_policy(folder: Path) -> str:
    """SHA-256 over names and contents of the files that decide on a policy's words."""
    total = hashlib.sha256()
    for path in sorted(folder.iterdir()):
        if path.name.endswith(POLICY_FILES) and path.name not in NOT_POLICY:
            with path.open("rb") as file:
                digest = hashlib.file_digest(file, "sha256").hexdigest()
            total.update(f"{path.name}\0{digest}\n".encode())
    return total.hexdigest()


def load_policy(
    source: str,
    *,
    task: str,
    revision: str | None = None,
    device: str = "auto",
    dtype: str = "auto",
    sampling: Sampling | None = None,
    rendering: str | None = None,
    token: str | bool | None = None,
    allow_other_task: bool = False,
    batch_size: int = 64,
    beta: float | None = None,
) -> LanguageModelPolicy:
    """A policy or any causal language model, from a folder or the Hub, ready to play a task.

    Args:
        source: Folder, or `namespace/name` on the Hub, optionally with `@revision`.
        task: Task id.
        revision: Branch, tag or commit on the Hub.
        device: `auto` is a GPU where there is one.
        dtype: `float32`, `bfloat16`, `float16`; `auto` is the checkpoint's on a GPU, and float32 on a CPU, where
            the half types are slower.
        sampling: How tokens are drawn; None is plain sampling.
        rendering: `plain` or `chat`; None is what the policy was trained with, or what suits the model.
        token: As in `huggingface_hub`; None takes the ambient one.
        allow_other_task: Load a policy that was trained on another task.
        batch_size: Most prompts in one call of the model.
        beta: Weight of a value policy's values; None is what it was saved with.

    Returns:
        The policy; its `name`, `revision`, `dtype`, `device`, `rendering` and `sampling` are what a record of an
        evaluation needs.

    Raises:
        ValueError: A name is unknown, or the policy is of another task.
        FileNotFoundError: As in `find_policy`.
        PermissionError: As in `find_policy`.
        ConnectionError: As in `find_policy`.
    """
    spec = load_task(task).spec
    if dtype not in DTYPES:
        raise ValueError(unknown("dtype", dtype, DTYPES))
    found = find_policy(source, revision, token)
    record = read_record(found.folder)
    if record is not None and record.task != task and not allow_other_task:
        raise ValueError(
            f"{found.name} was trained on task {record.task!r}, not {task!r}; give --task {record.task}, or load it "
            "with allow_other_task"
        )
    tokenizer = AutoTokenizer.from_pretrained(found.folder)
    if rendering is None:
        suited = "chat" if tokenizer.chat_template else "plain"
        rendering = record.rendering if record is not None else suited
    build = POLICIES[record.kind if record is not None else "causal_lm"]
    own = record is not None and record.task == task
    model = load_model(found.folder, pick_device(device), dtype)
    extra: dict[str, Any] = {}
    if record is not None and record.values is not None:
        extra = {
            "values": _load_values(found.folder, model, record.values),
            "beta": record.values["beta"] if beta is None else beta,
        }
    elif beta is not None:
        raise ValueError(f"beta is {beta}, but {found.name} has no values to weigh; leave beta out")
    return build(
        model,
        tokenizer,
        spec,
        name=found.name,
        rendering=rendering,
        sampling=sampling,
        max_length=record.max_length if record is not None else None,
        memory=record.memory if own and record is not None else "task",
        action_room=record.action_room if own and record is not None else None,
        batch_size=batch_size,
        revision=found.revision,
        **extra,
    )


def _load_values(folder: Path, model: Any, record: Mapping[str, Any]) -> ValueModel:
    """The trunk (or its adapter) and heads beside a behaviour policy, on its device and in its dtype."""
    settings = HeadSettings(record["linear"], record["bias"], record["token_ids"])
    lora = record.get("lora")
    trunk = _trunk_beside(model, record.get("trunk")) if lora is None else lora_trunk(model, LoraSettings(**lora))
    values = ValueModel(trunk, settings, record["q_heads"])
    try:
        values.load_acting_state(load_file(folder / VALUES_NAME))
    except (OSError, RuntimeError) as error:
        raise ValueError(f"{folder / VALUES_NAME} does not fit the model beside it: {error}") from error
    return values.to(device=model.device, dtype=model.dtype)


def load_body(found: Found) -> Any:
    """A causal language model whose body is a found model's, or, of a value policy, that policy's value trunk.

    Raises:
        ValueError: The value trunk is an adapter.
    """
    model, record = load_model(found.folder, "cpu", "float32"), read_record(found.folder)
    if record is None or record.values is None:
        return model
    if record.values.get("lora") is not None:
        raise ValueError(
            f"the values of {found.name} are an adapter, which is no trunk of its own; take another policy"
        )
    if (config := record.values.get("trunk")) is not None:
        model = _new_of(config, model.dtype)
    weights = load_file(found.folder / VALUES_NAME)
    start = "trunk."
    model.base_model.load_state_dict(
        {name.removeprefix(start): tensor for name, tensor in weights.items() if name.startswith(start)}
    )
    return model


def _trunk_beside(model: Any, config: Mapping[str, Any] | None) -> Any:
    """A trunk for weights to be loaded into, of the behaviour policy's shape or of the one given."""
    return trunk_of(model if config is None else _new_of(config, model.dtype)).to(model.device)


def _new_of(config: Mapping[str, Any], dtype: torch.dtype) -> Any:
    """A causal language model of a configuration, for weights to be loaded into."""
    from_config: Any = AutoModelForCausalLM.from_config
    return from_config(AutoConfig.for_model(**config), dtype=dtype)


def pick_device(device: str) -> str:
    """The device itself; for `auto` a GPU where there is one."""
    if device != "auto":
        return device
    return "cuda" if torch.cuda.is_available() else "cpu"


def load_model(folder: Path, device: str, dtype: str, kind: Any = AutoModelForCausalLM) -> Any:
    """A language model from its folder.

    Args:
        folder: With weights and `config.json`.
        device: `cpu`, `cuda`, ...
        dtype: As in `load_policy`.
        kind: The transformers class that reads it.

    Raises:
        ValueError: No such dtype, or no such model in the folder.
    """
    if dtype not in DTYPES:
        raise ValueError(unknown("dtype", dtype, DTYPES))
    model: Any
    if dtype == "auto":
        dtype = "float32" if device == "cpu" else "auto"
    try:
        model = kind.from_pretrained(folder, dtype=dtype)
    except (OSError, ValueError) as error:
        what = "causal" if kind is AutoModelForCausalLM else "encoder-decoder"
        raise ValueError(f"{folder} holds no {what} language model that transformers can load: {error}") from error
    return model.to(device)


def make_repository(repo_id: str, *, private: bool = False, token: str | bool | None = None) -> None:
    """Make sure that a model repository is there, which also shows before the training whether one may write.

    Raises:
        FileNotFoundError: The name is not possible.
        PermissionError: There is no token, or it may not write there.
        ConnectionError: The Hub could not be reached.
    """
    try:
        with_retries(lambda: HfApi(token=token).create_repo(repo_id, private=private, exist_ok=True))
    except HUB_ERRORS as error:
        raise explain(error, f"model {repo_id}") from error


def push_policy(folder: Path, repo_id: str, *, token: str | bool | None = None) -> str:
    """Put a saved policy on the Hub in one commit, and return that commit's sha.

    Raises:
        FileNotFoundError: The folder holds no policy, or there is no such repository.
        PermissionError: There is no token, or it may not write there.
        ConnectionError: The Hub could not be reached, or others kept committing.
    """
    if not (folder / RECORD_NAME).exists():
        raise FileNotFoundError(f"{folder} holds no policy (no {RECORD_NAME}); give the folder that training wrote")
    names = [path.name for path in sorted(folder.iterdir()) if path.is_file() and path.name not in NOT_PUSHED]
    try:
        info = with_retries(
            lambda: HfApi(token=token).upload_folder(
                repo_id=repo_id,
                folder_path=folder,
                allow_patterns=[escape(name) for name in names],
                delete_patterns=["*.safetensors", "*.bin"],  # of an earlier policy with other shards
                commit_message=f"Policy of lmrl {version('lmrl')}",
            )
        )
    except HUB_ERRORS as error:
        raise explain(error, f"model {repo_id}") from error
    return str(info.oid)


# Kinds of policy, by the name in `policy.json`.
POLICIES: Mapping[str, Callable[..., LanguageModelPolicy]] = {"causal_lm": LanguageModelPolicy, "values": ValuePolicy}
