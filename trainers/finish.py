"""The end of a training run: its policy's record, and the policy with card, log and curves in the run's folder."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torch import Tensor

from trainers.card import render_card
from trainers.load import PolicyRecord
from trainers.runs import leave_policy, processes
from trainers.sharding import whole
from trainers.tokens import Renderer

NO_DATASET: dict[str, str | None] = {"source": None, "revision": None}


def record_of(
    algorithm: str,
    renderer: Renderer,
    *,
    base_model: dict[str, str | None] | None,
    seed: int,
    training: dict[str, Any],
    dataset: dict[str, str | None] | None = None,
    **others: Any,
) -> PolicyRecord:
    """A policy's record, with how it reads episodes from the run's renderer.

    Args:
        algorithm: As in `PolicyRecord`, as are the others.
        renderer: Of the run.
        base_model: See there.
        seed: See there.
        training: See there.
        dataset: See there; None is no dataset.
        others: Its other fields.
    """
    return PolicyRecord(
        algorithm=algorithm,
        task=renderer.spec.id,
        task_version=renderer.spec.version,
        rendering=renderer.rendering,
        memory=renderer.memory,
        max_length=renderer.max_length,
        action_room=renderer.action_room,
        dataset=NO_DATASET if dataset is None else dataset,
        base_model=base_model,
        seed=seed,
        training=training,
        **others,
    )


def finish(
    trainer: Any,
    folder: Path,
    renderer: Renderer,
    record: PolicyRecord,
    *,
    name: str,
    command: str,
    model: Any = None,
    state: Mapping[str, Tensor] | None = None,
    values: Mapping[str, Tensor] | None = None,
) -> PolicyRecord:
    """Put the weights together and leave the policy in the run's folder. All processes must call it.

    Args:
        trainer: Has trained.
        folder: Of the run.
        renderer: Of the run; its tokenizer is saved.
        record: What the policy is.
        name: As in `render_card`.
        command: As there.
        model: The language model to save; None is the trained one, with PEFT's adapters merged into its weights.
        state: Its weights, maybe in parts, where they are not its `state_dict`.
        values: Learned values beside it, whole, as in `save_policy`.

    Returns:
        The record.
    """
    if model is None:
        model = trainer.accelerator.unwrap_model(trainer.model)
        if hasattr(model, "merge_and_unload"):
            model = model.merge_and_unload()
    main = processes().is_main_process
    # All processes: what FSDP and ZeRO-3 divided among them is put together.
    weights = whole(model.state_dict(keep_vars=True) if state is None else state, keep=main)
    if main:
        card, log = render_card(record, renderer.spec, name, command), trainer.state.log_history
        leave_policy(folder, model, renderer.tokenizer, record, log, card, values, weights)
    return record
