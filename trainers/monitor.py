"""What a run does beside its steps: it plays its task to see how good it has become, and it can be stopped.

The loss of a value method says little about the policy that comes of it, so a run may play episodes every so many
steps (`Measuring`), and then keeps the weights that had the best mean return. The episodes are the first of the
task's validation split: the test episodes stay unseen until `lmrl eval`.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from contextlib import closing
from types import FrameType
from typing import Any, NamedTuple

import torch
from accelerate.utils import DistributedType, gather_object
from transformers import TrainerCallback

from env_servers.cli import env_maker
from env_servers.play import episode_starts, play_through
from env_servers.policy import Policy
from env_servers.scores import EpisodeScore, summarize
from env_servers.tasks import load_task
from trainers.runs import processes
from trainers.tokens import Renderer

# Every process has whole weights, so each may play a share of the episodes; elsewhere all must call the model as often.
WHOLE_WEIGHTS = (DistributedType.NO, DistributedType.MULTI_CPU, DistributedType.MULTI_GPU)


class Measuring(NamedTuple):
    """How a run is measured while it learns.

    Attributes:
        task: Task id.
        steps: Play after every so many steps of the optimiser.
        episodes: How many; their mean return decides which weights are kept.
        make_policy: From the model in training, unwrapped, to what plays.
        env: Servers that the environments are on, see `env_servers.client.remote_envs`; None has them here.
        alone: Whether what `make_policy` gives plays in each process by itself, also where weights are in parts.
    """

    task: str
    steps: int
    episodes: int
    make_policy: Callable[[Any], Policy]
    env: str | None = None
    alone: bool = False

    def arguments(self) -> dict[str, Any]:
        """What `transformers.TrainingArguments` need for it. Checkpoints are written as often as it plays."""
        return {
            "eval_strategy": "steps",
            "eval_steps": self.steps,
            "save_steps": self.steps,
            "load_best_model_at_end": True,
            "metric_for_best_model": "eval_return",
            "greater_is_better": True,
        }


class Measured:
    """Mixin of `transformers.Trainer`: with `measuring`, its evaluation plays episodes instead of computing a loss."""

    measuring: Measuring | None = None

    def evaluate(self, *args: Any, **kwargs: Any) -> dict[str, float]:
        """Play, log, and return `eval_return`, `eval_success`, `eval_length` (actions), `eval_invalid` (a share of the
        actions), and `eval_runtime` (seconds)."""
        trainer: Any = self
        if self.measuring is None:
            base: Any = super()
            found: dict[str, float] = base.evaluate(*args, **kwargs)
            return found
        model = trainer.accelerator.unwrap_model(trainer.model, keep_torch_compile=False)
        training, began = model.training, time.monotonic()
        scores = _play(self.measuring, model)
        model.train(training)
        summary = summarize(scores)
        metrics = {
            "eval_return": summary.mean_return,
            "eval_success": summary.success_rate,
            "eval_length": summary.mean_length,
            "eval_invalid": summary.invalid_rate,
            "eval_runtime": time.monotonic() - began,
        }
        trainer.log(metrics)
        trainer.control = trainer.callback_handler.on_evaluate(trainer.args, trainer.state, trainer.control, metrics)
        return metrics


def check_env(task: str, steps: int, env: str | None, *, alone: bool = False) -> None:
    """Look for the servers that are to be played on, before anything is trained.

    Args:
        task: Task id.
        steps: As in `Measuring`; 0 plays nothing.
        env: As in `Measuring`.
        alone: As there.

    Raises:
        ValueError: Nothing is played, or all processes must call the model equally often, which servers upset.
        EpisodeError: No server can be reached, or one does not play the task as it is here.
    """
    if env is None:
        return
    if not steps:
        raise ValueError(f"env is {env}, but nothing is played; give eval_steps (--eval-steps), too")
    if not alone and weights_in_parts():
        raise ValueError(
            f"env is {env}, and the weights are divided among processes, which then have to play in step; play here"
        )
    with env_maker(env) as servers, closing(servers(task, load_task(task).spec.test_starts[0])) as one:
        one.prepare()


def weights_in_parts() -> bool:
    """Whether the processes will divide the weights; of FSDP, `processes` tells that only once there is a trainer."""
    state = processes()
    fsdp = os.environ.get("ACCELERATE_USE_FSDP", "false").lower() == "true" and state.device.type != "cpu"
    return fsdp or state.distributed_type not in WHOLE_WEIGHTS


def reads_like(renderer: Renderer) -> dict[str, Any]:
    """The options of `LanguageModelPolicy` with which it reads episodes as a run's renderer does."""
    return {
        "rendering": renderer.rendering,
        "max_length": renderer.max_length,
        "memory": renderer.memory,
        "action_room": renderer.action_room,
    }


def _play(measuring: Measuring, model: Any) -> list[EpisodeScore]:
    state = processes()
    divide = measuring.alone or state.distributed_type in WHOLE_WEIGHTS
    mine = slice(state.process_index, None, state.num_processes) if divide else slice(None)
    starts = list(episode_starts(measuring.task, "validation", range(measuring.episodes)))[mine]
    with env_maker(measuring.env) as make:
        played = play_through(measuring.task, measuring.make_policy(model.eval()), starts, env_maker=make)
        scores = [
            EpisodeScore(t.episode_return, t.success, t.num_turns, t.num_invalid)
            for t in (p.trajectory for p in played)
        ]
    return gather_object(scores) if divide and state.num_processes > 1 else scores


class _Stopping(TrainerCallback):
    """Ends the training after the step in which a signal came, with a checkpoint."""

    def __init__(self) -> None:
        self.asked = False
        self._before: dict[int, Any] = {}

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """Called by the trainer after each step of the optimiser. All processes must stop after the same one."""
        if args.world_size > 1:
            asked = torch.tensor(float(self.asked), device=args.device)
            torch.distributed.all_reduce(asked)
            self.asked = bool(asked > 0)
        if self.asked:
            control.should_save = control.should_training_stop = True

    def __enter__(self) -> _Stopping:
        if threading.current_thread() is threading.main_thread():
            self._before = {number: signal.signal(number, self._ask) for number in (signal.SIGINT, signal.SIGTERM)}
        return self

    def __exit__(self, *_: Any) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _ask(self, number: int, _: FrameType | None) -> None:
        if self.asked:  # the second time is meant at once
            raise KeyboardInterrupt
        self.asked = True
        print("\nStopping after this step; once more stops at once, without a checkpoint.", file=sys.stderr)


def train_until_stopped(trainer: Any, checkpoint: str | None) -> None:
    """Train to the end, or until Ctrl-C (or SIGTERM), which saves a checkpoint first.

    Args:
        trainer: A `transformers.Trainer` with checkpoints.
        checkpoint: Folder to go on from, or None.

    Raises:
        KeyboardInterrupt: It was stopped.
    """
    with _Stopping() as stopping:
        trainer.add_callback(stopping)
        trainer.train(resume_from_checkpoint=checkpoint)
    if stopping.asked and trainer.state.global_step < trainer.state.max_steps:
        if trainer.is_world_process_zero():
            print(
                f"Stopped after step {trainer.state.global_step} of {trainer.state.max_steps}; the same command goes "
                "on there.",
                file=sys.stderr,
            )
        raise KeyboardInterrupt
