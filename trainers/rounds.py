"""Trainers that learn in rounds from episodes that their own policy plays: what they have in common.

A round is `rollouts` episodes of the train split (`trainers.online`) and then `steps_per_round` steps of the optimiser,
on batches that the trainer makes of them. The trainer's dataloader is an endless stream of these, and a round is played
when its first batch is asked for. So the step that a checkpoint is of tells which round it is from, and a run that was
stopped reads a begun round from its files instead of playing it.

What acts need not be what learns. `PlaysRounds.acting_part` names the module whose weights decide how to act, and
`PlaysRounds.make_policy` makes the player of it: the learned model itself, or a frozen one beside learned values.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from accelerate.utils import gather_object
from transformers.trainer_utils import get_last_checkpoint

from env_servers.cli import env_maker
from env_servers.play import Played
from env_servers.task import EpisodeError, TaskSpec
from trainers.monitor import WHOLE_WEIGHTS, reads_like
from trainers.online import (
    EpisodeNumbers,
    OnlinePolicy,
    Rollouts,
    collect,
    numbers_of,
    read_journal,
    round_metrics,
    write_transcripts,
)
from trainers.policy import Sampling
from trainers.sharding import whole
from trainers.tokens import Renderer

ENV_STEPS = "rollout/total_env_steps"


@dataclass
class RoundSettings:
    """Mixin of `transformers.TrainingArguments`, before it among the bases: how rounds are played.

    `max_steps` follows from `rounds`. A class with it says what its `steps_per_round` are.
    """

    rounds: int = field(default=100, metadata={"help": "Rounds of playing and learning."})
    rollouts: int = field(default=512, metadata={"help": "Episodes of a round, of all processes together."})
    slots: int = field(default=64, metadata={"help": "Episodes at the same time, in each process."})
    temperature: float = field(default=1.0, metadata={"help": "Of sampling."})
    response_length: int | None = field(default=None, metadata={"help": "Most tokens of an action."})
    max_episode_tokens: int | None = field(default=None, metadata={"help": "Most tokens said in an episode."})
    num_sample_generations: int = field(default=2, metadata={"help": "Episodes of a round written out to read."})

    @property
    def steps_before_rounds(self) -> int:
        """Steps of the optimiser before the first round is played."""
        return 0

    def round_of(self, step: int) -> tuple[int, int]:
        """The round that a step belongs to (a negative one before the first), and how many of its steps came before."""
        arguments: Any = self
        number, begun = divmod(step - self.steps_before_rounds, arguments.steps_per_round)
        return number, begun

    def __post_init__(self) -> None:
        arguments: Any = self
        arguments.max_steps = self.steps_before_rounds + self.rounds * arguments.steps_per_round
        arguments.ignore_data_skip = True  # a checkpoint's rounds are not played again
        super().__post_init__()  # type: ignore[misc]
        self.check_positive("rounds", "rollouts", "slots", "temperature")
        if self.rollouts < arguments.world_size:
            raise ValueError(
                f"rollouts is {self.rollouts}, less than the {arguments.world_size} processes that play them"
            )

    def check_positive(self, *names: str) -> None:
        """Raise a ValueError unless the settings of these names are above 0."""
        for name in names:
            if not getattr(self, name) > 0:
                raise ValueError(f"{name} is {getattr(self, name)}; it must be above 0")


class PlayedRound(NamedTuple):
    """A round that has been played.

    Attributes:
        played: This process's episodes, in the order of their places in the split.
        numbers: Of the episodes of all processes.
        metrics: What to log of it, see `online.round_metrics`; and all environment steps so far.
    """

    played: list[Played]
    numbers: list[EpisodeNumbers]
    metrics: dict[str, float]


class PlaysRounds:
    """Mixin of `transformers.Trainer`, before it among the bases: its batches are of rounds that it plays.

    Its `args` have `RoundSettings` and `steps_per_round`. After the trainer's own `__init__`, call `prepare_rounds`. A
    trainer with it has to have `play_round`, `begun_round` and `round_batches`.

    Attributes:
        rollouts: What a round plays.
        renderer: How the policy reads episodes.
        policy: What plays.
    """

    args: Any
    state: Any
    model: Any
    accelerator: Any
    processing_class: Any
    log: Any
    rollouts: Rollouts
    renderer: Renderer
    policy: OnlinePolicy

    # What a trainer says of itself

    def play_round(self, number: int) -> Any:
        """Play a round (by `play`), make of it what its batches need, and log it.

        Raises:
            EpisodeError: No episode could be played.
        """
        raise NotImplementedError

    def begun_round(self, number: int) -> Any:
        """The same of a round that was played before the run was stopped, from its files (`kept_file`, `replayed`).

        Raises:
            FileNotFoundError: They are gone.
        """
        raise NotImplementedError

    def round_batches(self, known: Any, number: int, begun: int) -> Iterator[dict[str, Any]]:
        """The batches of a round, `gradient_accumulation_steps` for each step, but for those of its first steps.

        Args:
            known: What `play_round` or `begun_round` gave.
            number: Of the round.
            begun: How many of its steps have been made.
        """
        raise NotImplementedError

    def batches_before_rounds(self) -> Iterator[dict[str, Any]]:
        """Those of the steps before the first round (`steps_before_rounds`) that have not been made."""
        yield from ()

    def acting_part(self, model: Any) -> Any:
        """The part of the trained model, unwrapped, whose weights decide how to act; a module."""
        return model

    def make_policy(self, acting: Any, **options: Any) -> OnlinePolicy:
        """What plays.

        Args:
            acting: The `acting_part`, or this process's own copy where the weights are in parts.
            options: Those of `OnlinePolicy` beside model, tokenizer and spec.
        """
        return OnlinePolicy(acting, self.processing_class, self.renderer.spec, **options)

    def oldest_needed(self, number: int) -> int:
        """The first round whose files a run needs that goes on in round `number`."""
        return number

    # What it has

    def prepare_rounds(
        self,
        task: str,
        renderer: Renderer,
        *,
        env_kwargs: Mapping[str, Any] | None = None,
        env: str | None = None,
        name: str,
        transcripts: Path | None = None,
    ) -> None:
        """Make the policy that plays.

        Args:
            task: Task id.
            renderer: How it reads episodes.
            env_kwargs: Options of the environment.
            env: Servers that are played on, see `env_servers.client.remote_envs`; None plays here.
            name: Goes into the records of its episodes.
            transcripts: Folder for sample episodes of each round; None writes none.
        """
        args = self.args
        self.renderer = renderer
        self._env, self._name, self._transcripts = env, name, transcripts
        process = {"process": self.accelerator.process_index, "processes": self.accelerator.num_processes}
        self.rollouts = Rollouts(task, args.rollouts, args.slots, env_kwargs, seed=args.seed, **process)
        part = self.acting_part(self.model)
        # Whoever has its weights in parts plays with a copy of its own, so that all need not act in step.
        self._copied = self.accelerator.distributed_type not in WHOLE_WEIGHTS
        self._acting = copy.deepcopy(part).to(args.device) if self._copied else part
        self.policy = self.make_policy(
            self._acting,
            name=name,
            sampling=Sampling(args.temperature, max_new_tokens=args.response_length),
            batch_size=args.slots,
            max_episode_tokens=args.max_episode_tokens,
            **reads_like(renderer),
        )

    @property
    def spec(self) -> TaskSpec:
        """The task's constants."""
        return self.renderer.spec

    def get_train_dataloader(self) -> Any:
        """The endless stream of batches; each round is played when its first one is asked for."""
        return _Stream(self)

    def batches(self) -> Iterator[dict[str, Any]]:
        """Batches from where the trainer's state is, `gradient_accumulation_steps` for each step."""
        yield from self.batches_before_rounds()
        while True:
            number, begun = self.args.round_of(self.state.global_step)
            known = self.begun_round(number) if begun else self.play_round(number)
            yield from self.round_batches(known, number, begun)

    def playing_model(self) -> Any:
        """The acting part, as this process can use it by itself; all processes must call it together."""
        if self._copied:
            part = self.acting_part(self.accelerator.unwrap_model(self.model, keep_torch_compile=False))
            self._acting.load_state_dict(whole(part.state_dict(keep_vars=True)))
        return self._acting

    @contextmanager
    def acting(self) -> Iterator[OnlinePolicy]:
        """What plays, with the weights of now and without dropout; then these learn on as before."""
        model = self.playing_model()
        learning = model.training
        try:
            model.eval()
            yield self.policy
        finally:
            model.train(learning)

    def play(self, number: int) -> PlayedRound:
        """Play this process's part of a round, or what its journal lacks of it; all processes do it together.

        Raises:
            EpisodeError: No episode of any process could be played.
        """
        trainer: Any = self
        self._remove_old_rounds()
        with self.acting() as policy, env_maker(self._env) as make, trainer.compute_loss_context_manager():
            policy.name = f"{self._name}-round-{number}"
            policy.begin(number)
            found = collect(self.rollouts, policy, number, self.round_file(number, "jsonl"), make)
        shown = found.played[: self.args.num_sample_generations]
        if self._transcripts is not None and trainer.is_world_process_zero() and self.args.num_sample_generations:
            write_transcripts(self._transcripts / f"round-{number:05d}.txt", shown)
        numbers = self.gathered([numbers_of(played) for played in found.played])
        others = self.gathered([(found.failed, found.seconds, found.error)])
        if not numbers:
            reason = next((error for _, _, error in others if error), "there are none")
            raise EpisodeError(f"none of the {self.rollouts.episodes} episodes of round {number} was played: {reason}")
        metrics = round_metrics(numbers, sum(f for f, _, _ in others), max(s for _, s, _ in others))
        metrics[ENV_STEPS] = sum([*self.logged(ENV_STEPS)[-1:], metrics["rollout/env_steps"]])
        return PlayedRound(found.played, numbers, metrics)

    def replayed(self, number: int) -> list[Played]:
        """This process's episodes of a round that was played before, from its journal.

        Raises:
            FileNotFoundError: It is gone.
            ValueError: It is damaged.
        """
        episodes = read_journal(self.kept_file(number, "jsonl"))
        return [episodes[place] for place in sorted(episodes)]

    def logged(self, name: str) -> list[float]:
        """All values of that name in the log."""
        return [entry[name] for entry in self.state.log_history if name in entry]

    def gathered(self, items: list[Any]) -> list[Any]:
        """The items of all processes."""
        return list(gather_object(items)) if self.rollouts.processes > 1 else items

    def round_file(self, number: int, ending: str) -> Path:
        """Where this process keeps something of a round; deleted once no run can need it."""
        return Path(str(self.args.output_dir)) / "rounds" / f"{number:05d}-{self.rollouts.process}.{ending}"

    def kept_file(self, number: int, ending: str) -> Path:
        """The same, of a round that a checkpoint needs.

        Raises:
            FileNotFoundError: It is gone.
        """
        path, (now, begun) = self.round_file(number, ending), self.args.round_of(self.state.global_step)
        if not path.exists():
            where = "the middle of round" if begun else "round"
            raise FileNotFoundError(
                f"the checkpoint is from {where} {now}, and {path}, which has {'the' if now == number else 'that'} "
                "round's episodes, is gone; delete that checkpoint to go on from the one before"
            )
        return path

    def _remove_old_rounds(self) -> None:
        """Delete this process's files of rounds that no run from the last checkpoint can need again."""
        folder = Path(str(self.args.output_dir))
        last: Any = get_last_checkpoint(str(folder)) if folder.is_dir() else None  # type: ignore[no-untyped-call]
        needed = 0
        if last is not None:
            needed = self.oldest_needed(self.args.round_of(int(last.rpartition("-")[2]))[0])
        for path in (folder / "rounds").glob(f"*-{self.rollouts.process}.*"):
            if int(path.name.partition("-")[0]) < needed:
                path.unlink()


class _Stream:
    """What the trainer takes for a dataloader; it has no length."""

    def __init__(self, trainer: PlaysRounds) -> None:
        self._trainer = trainer

    def __iter__(self) -> Iterator[dict[str, Any]]:
        return self._trainer.batches()
