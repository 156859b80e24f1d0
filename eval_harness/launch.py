"""A run by several processes that `accelerate launch` or `torchrun` began: each plays its shard, the first merges them.

    <output>              the run, once all shards are played
    <output>.shards/1-of-4/, ...   the shards' logs; deleted when the run is complete

A launch that was stopped goes on with the same command and number of processes. The processes wait for each other only
before they begin and when they have ended, so a slow one keeps none from playing.
"""

from __future__ import annotations

import datetime
import os
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from eval_harness.log import HEADER, move_aside, read_done, read_header
from eval_harness.merge import merge
from eval_harness.models import parse_model
from eval_harness.run import RunResult, run

PATIENCE = datetime.timedelta(days=30)  # a process waits for the others' episodes, however long these take


class Place(NamedTuple):
    """This process among those that were launched together, from 0; `local` is its number on its machine."""

    rank: int
    size: int
    local: int


def place() -> Place:
    """Where this process stands, by the variables that torchrun sets; alone where there are none."""
    rank, size, local = (int(os.environ.get(name, "0")) for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK"))
    return Place(rank, max(1, size), local)


@contextmanager
def together() -> Iterator[Place]:
    """The group of all launched processes."""
    import torch.distributed as distributed

    began = not distributed.is_initialized()
    if began:  # gloo: only words are exchanged, also where there are GPUs
        distributed.init_process_group("gloo", timeout=PATIENCE)
    try:
        yield place()
    finally:
        if began:
            distributed.destroy_process_group()


def run_launched(output: Path, *, overwrite: bool = False, **arguments: Any) -> RunResult | None:
    """`run.run` by all launched processes; each calls it alike, within `together`.

    Args:
        output: Folder of the run.
        overwrite: As in `run`.
        arguments: The others of `run`.

    Returns:
        The result in the first process, None in the others.

    Raises:
        ValueError: As in `run`, or the folder's run was begun otherwise.
        RuntimeError: A process failed; each that did is told of.
    """
    here = place()
    shards = output.with_name(output.name + ".shards")
    whole = _share(here, lambda: _prepare(output, shards, here.size, overwrite))
    if whole:  # opened all the same: its settings may differ
        found: RunResult | None = _share(here, lambda: run(output=output, **arguments), everywhere=False)
        return found
    if arguments.get("record") is not None:
        raise ValueError(
            f"--record {arguments['record']} keeps what the partner of one process says; record with one process, or "
            "with a file for each --shard"
        )
    if here.rank:
        arguments |= {"progress": False, "watch": None}
    mine = {"device": _device(arguments, here), "shard": (here.rank + 1, here.size)}
    folder = shards / f"{here.rank + 1}-of-{here.size}"
    _gather(here, lambda: run(output=folder, **{**arguments, **mine}))
    merged: RunResult | None = _share(here, lambda: _merge(output, shards, here.size), everywhere=False)
    return merged


def _prepare(output: Path, shards: Path, size: int, overwrite: bool) -> bool:
    """Whether the run is complete already."""
    if overwrite:
        for folder in (output, shards):
            if folder.exists():
                move_aside(folder)
    others = sorted(folder.name for folder in shards.glob("*-of-*") if not folder.name.endswith(f"-of-{size}"))
    if others:
        raise ValueError(
            f"{shards} holds shards of another number of processes ({others[0]}); launch as many as before, or put "
            f"together what is there by `lmrl eval merge {shards}/* --partial --output DIR`"
        )
    if not (output / HEADER).exists():
        return False
    if read_done(output) == read_header(output).episodes:
        return True
    if not shards.exists():
        raise ValueError(
            f"{output} was begun by one process; go on with one, choose another folder with --output, or give "
            "--overwrite, which moves it aside"
        )
    return False


def _merge(output: Path, shards: Path, size: int) -> RunResult:
    parts = [shards / f"{number}-of-{size}" for number in range(1, size + 1)]
    scored = merge(parts, output, partial=True, replaces=True)
    if scored.complete:
        shutil.rmtree(shards)
    return RunResult(output, scored)


def _device(arguments: Mapping[str, Any], here: Place) -> str:
    """A GPU of its own for each process of a machine."""
    device = str(arguments.get("device", "auto"))
    if device not in ("auto", "cuda") or parse_model(arguments["model"]).scripted:
        return device
    import torch

    return f"cuda:{here.local % torch.cuda.device_count()}" if torch.cuda.is_available() else device


def _gather(here: Place, work: Any) -> None:
    """Work in all processes, and wait for all; what failed in any of them is raised in each."""
    import torch.distributed as distributed

    error: str | None = None
    try:
        work()
    except (ValueError, RuntimeError, OSError) as failed:
        error = f"{type(failed).__name__}: {failed}"
    errors: list[str | None] = [None] * here.size
    distributed.all_gather_object(errors, error)
    told = [f"process {rank}: {error}" for rank, error in enumerate(errors) if error is not None]
    if told:
        raise RuntimeError("\n".join([f"{len(told)} of {here.size} processes failed; the others' work is kept", *told]))


def _share(here: Place, work: Any, *, everywhere: bool = True) -> Any:
    """Work in the first process; its result in all, or in the first alone. An error is raised in each."""
    import torch.distributed as distributed

    told: list[Any] = [None, None]
    kept: Any = None
    if here.rank == 0:
        try:
            kept = work()
            told[0] = kept if everywhere else None
        except (ValueError, RuntimeError, OSError) as failed:
            told[1] = type(failed).__name__, str(failed)
    distributed.broadcast_object_list(told, src=0)
    if told[1] is not None:
        name, words = told[1]
        raise {"ValueError": ValueError}.get(name, RuntimeError)(words)
    return kept if here.rank == 0 else told[0]
