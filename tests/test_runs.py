"""What a run asks of the allocator, and when."""

from __future__ import annotations

import json
import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from tiny_models import maze_episodes
from typer.testing import CliRunner

import trainers.bc as bc_module
import trainers.runs as runs_module
import trainers.value_training as value_module
from hub_datasets.cli import app as data_app
from hub_datasets.load import Source
from trainers.bc import train_bc
from trainers.cli import app as train_app
from trainers.runs import keep_freed_memory
from trainers.value_training import ValueRun, train_values


class Library:
    """A C library that notes what `mallopt` is called with."""

    def __init__(self, answer: int = 1) -> None:
        self.answer, self.calls = answer, []

    def mallopt(self, parameter: int, value: int) -> int:
        self.calls.append((parameter, value))
        return self.answer


class Glibc(Library):
    def gnu_get_libc_version(self) -> bytes:
        return b"2.36"


def with_library(monkeypatch: pytest.MonkeyPatch, library: Any, platform: str = "linux") -> None:
    monkeypatch.setattr(runs_module, "ctypes", SimpleNamespace(CDLL=lambda name: library))
    monkeypatch.setattr(runs_module, "sys", SimpleNamespace(platform=platform))


def test_glibc_is_asked_to_keep_freed_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    with_library(monkeypatch, library := Glibc())
    assert keep_freed_memory() is True
    # M_MMAP_MAX, M_TRIM_THRESHOLD, M_TOP_PAD of malloc.h.
    assert library.calls == [(-4, 0), (-1, -1), (-2, 268435456)]


def test_other_allocators_are_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    with_library(monkeypatch, musl := Library())
    assert keep_freed_memory() is False and musl.calls == []
    with_library(monkeypatch, glibc := Glibc(), platform="darwin")
    assert keep_freed_memory() is False and glibc.calls == []
    with_library(monkeypatch, Glibc(answer=0))
    assert keep_freed_memory() is False


def resident() -> int:
    """MB."""
    found = re.search(r"VmRSS:\s+(\d+) kB", Path("/proc/self/status").read_text())
    assert found is not None
    return int(found.group(1)) // 1024


def test_memory_of_a_freed_tensor_stays() -> None:
    if not keep_freed_memory():
        pytest.skip("not glibc on Linux")
    block = torch.ones(64 << 18)
    held = resident()
    del block
    assert resident() >= held - 4


class ReachedTheData(Exception):
    pass


@pytest.mark.parametrize("algorithm", ["bc", "ilql"])
@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_training_asks_on_a_cpu_alone(
    algorithm: str, device: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def read_episodes(*_: Any) -> Any:
        raise ReachedTheData

    asked: list[bool] = []
    state = SimpleNamespace(device=torch.device(device), num_processes=1, is_main_process=True)
    module = bc_module if algorithm == "bc" else value_module
    monkeypatch.setattr(module, "resolve", lambda source, revision=None, token=None: Source("maze", None))
    monkeypatch.setattr(module, "processes", lambda: state)
    monkeypatch.setattr(module, "read_episodes", read_episodes)
    monkeypatch.setattr(module, "keep_freed_memory", lambda: asked.append(True))
    with pytest.raises(ReachedTheData):
        if algorithm == "bc":
            train_bc("maze", "maze", tmp_path)
        else:
            train_values(ValueRun("ilql", "maze", "maze", None, "tiny"), tmp_path)
    assert asked == ([True] if device == "cpu" else [])


@pytest.mark.parametrize("algorithm", ["bc", "mc"])
def test_an_import_is_learned_from_without_an_option_more(algorithm: str, tmp_path: Path) -> None:
    """What is imported is the dataset's default configuration, and that is what is read; another can be named."""

    def call(app: Any, *words: str) -> Any:
        return CliRunner().invoke(app, [str(word) for word in words])

    walk = [{"state": played.observation, "action": played.action, "reward": played.reward, "done": False}
            for played in maze_episodes("maze", 1, "optimal")[0].turns]  # fmt: skip
    file, data, run = tmp_path / "train.jsonl", tmp_path / "walks", tmp_path / "run"
    file.write_text("".join(json.dumps([*walk[:-1], walk[-1] | {"done": True}][-n:]) + "\n" for n in (1, 2, 3)))
    assert call(data_app, "import", "maze", file, "--output", data).exit_code == 0
    task = ["--task", "maze", "--dataset", data]
    if algorithm == "mc":
        init = tmp_path / "bc"
        assert call(train_app, "bc", *task, "--output", init, "--steps", "1").exit_code == 0
        task += ["--init", init]
    command = [algorithm, *task, "--output", run, "--steps", "1"]
    first = call(train_app, *command)
    assert first.exit_code == 0 and "policy saved in" in first.output, first.output
    record = json.loads((run / "policy.json").read_text())
    assert record["dataset"] == {"source": "walks", "revision": None} and record["training"]["episodes"] == 3
    wrong = call(train_app, *command, "--config", "episodes", "--overwrite")
    assert "'episodes' not found. Available: ['lmrl_gym', 'tasks']" in str(wrong.exception)
    named = call(train_app, *command, "--config", "lmrl_gym", "--overwrite")
    assert named.exit_code == 0, named.output
    record = json.loads((run / "policy.json").read_text())
    assert record["dataset"] == {"source": "walks", "revision": None, "config": "lmrl_gym"}
    assert "--config lmrl_gym" in (run / "README.md").read_text()
