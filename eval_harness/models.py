"""Which model is measured: from its name on the command line to a policy and what identifies it.

`scripted:optimal` is a scripted policy of the task; anything else is a model, on the Hub or in a folder, with an
optional `@revision`. The identity is what a log's header keeps: two runs with equal identities are runs of the
same model, so a log is only ever continued by the model that began it. torch is imported only for a model.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

from env_servers.policy import Policy
from env_servers.tasks import make_policy
from eval_harness.extracting import ROOM, Extracting

SCRIPTED = "scripted"


class ModelRef(NamedTuple):
    """A model's name, read.

    Attributes:
        source: Name of a scripted policy, repository id, or folder.
        revision: Branch, tag or commit of a repository.
        scripted: Whether `source` names a scripted policy.
    """

    source: str
    revision: str | None = None
    scripted: bool = False

    def __str__(self) -> str:
        if self.scripted:
            return f"{SCRIPTED}:{self.source}"
        return self.source if self.revision is None else f"{self.source}@{self.revision}"


class Decoding(NamedTuple):
    """How a language model's actions are sampled.

    Attributes:
        temperature: 0 takes the most likely token.
        top_k: Sample among the k most likely tokens; 0 is all.
        top_p: Sample among the most likely tokens with this total probability; 1 is all.
        max_new_tokens: Token budget of one action; None takes the task's.
        beta: Weight of a value policy's values; None takes what it was saved with.
        rerank: Draw among the task's actions, by the probability of each as a whole.
        strict: Take what is said as it is, instead of finding the action in it (`extracting.Extracting`); None is only
            for a policy that was trained on a task (`policy.json`), which says actions alone.
    """

    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    max_new_tokens: int | None = None
    beta: float | None = None
    rerank: bool = False
    strict: bool | None = None


class Loaded(NamedTuple):
    """A policy ready to play, and all that identifies it (JSON values)."""

    policy: Policy
    identity: dict[str, Any]


def parse_model(text: str) -> ModelRef:
    """Read a model's name.

    Args:
        text: `scripted:<name>`, a folder, or a repository id with an optional `@revision`.

    Raises:
        ValueError: A part is empty, or a folder is given with a revision.
    """
    allowed = "allowed: scripted:<policy>, a folder, or a repository such as org/model or org/model@revision"
    kind, colon, name = text.partition(":")
    if colon and kind == SCRIPTED:
        if not name:
            raise ValueError(f"model {text!r} names no scripted policy; {allowed}")
        return ModelRef(name, scripted=True)
    if text and Path(text).is_dir():
        return ModelRef(text)
    source, at, revision = text.partition("@")
    if not source or (at and not revision):
        raise ValueError(f"model {text!r} has an empty part; {allowed}")
    if at and Path(source).is_dir():
        raise ValueError(f"{source} is a folder, so it has no revision {revision!r}; leave the revision out")
    return ModelRef(source, revision or None)


def load(
    ref: ModelRef,
    task: str,
    decoding: Decoding | None = None,
    *,
    device: str = "auto",
    dtype: str = "auto",
    rendering: str | None = None,
    batch: int = 32,
    token: str | bool | None = None,
) -> Loaded:
    """The policy of a model for a task.

    Args:
        ref: What `parse_model` read.
        task: Task id.
        decoding: How a language model samples, default `Decoding()`; a scripted policy has nothing to decode.
        device: `auto`, `cpu`, `cuda`, ...
        dtype: `auto`, `float32`, `bfloat16`, `float16`; see `trainers.load.load_policy`.
        rendering: `plain` or `chat`; None takes what the model was trained with.
        batch: Most prompts in one call of the model.
        token: As in `huggingface_hub`; None takes the ambient one.

    Raises:
        ValueError: No such task, scripted policy or setting.
        FileNotFoundError: No such repository, revision or folder.
    """
    if ref.scripted:
        policy = make_policy(task, ref.source)
        return Loaded(policy, {"kind": SCRIPTED, "name": str(ref), "revision": None})
    return _load_language_model(ref, task, decoding or Decoding(), device, dtype, rendering, batch, token)


def _load_language_model(
    ref: ModelRef,
    task: str,
    decoding: Decoding,
    device: str,
    dtype: str,
    rendering: str | None,
    batch: int,
    token: str | bool | None,
) -> Loaded:
    from trainers.load import find_policy, load_policy, read_record
    from trainers.policy import Sampling
    from trainers.value_policy import ValuePolicy

    settings = decoding._asdict()
    beta, strict = settings.pop("beta"), settings.pop("strict")
    if strict is None:
        strict = decoding.rerank or read_record(find_policy(ref.source, ref.revision, token).folder) is not None
    if not strict and decoding.rerank:
        raise ValueError(
            "rerank draws among the task's actions themselves, so there is nothing to find in what is said"
        )
    if not strict and settings["max_new_tokens"] is None:
        settings["max_new_tokens"] = ROOM
    policy = load_policy(
        ref.source,
        revision=ref.revision,
        task=task,
        device=device,
        dtype=dtype,
        sampling=Sampling(**settings),
        beta=beta,
        rendering=rendering,
        batch_size=batch,
        token=token,
    )
    identity: dict[str, Any] = {
        "kind": "language model",
        "name": ref.source,
        "revision": policy.revision,
        "dtype": policy.dtype,
        "device": policy.device.partition(":")[0],
        "rendering": policy.rendering,
        "sampling": {**settings, "max_new_tokens": policy.max_new_tokens},
    }
    if not decoding.rerank:
        del identity["sampling"]["rerank"]
    if isinstance(policy, ValuePolicy):
        identity["sampling"]["beta"] = policy.beta
    if not strict:
        identity["strict"] = False
        return Loaded(Extracting(policy), identity)
    return Loaded(policy, identity)
