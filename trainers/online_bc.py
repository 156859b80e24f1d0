"""Online filtered behaviour cloning: imitate the best of the episodes that the policy has just played itself.

In rounds (LMRL-Gym, arXiv 2311.18232, section 5): it plays episodes (`trainers.rounds`); a rule (`trainers.filters`)
chooses among those of the last rounds; and steps of cross entropy on the tokens that were sampled in the chosen ones
follow. Nothing is tokenised again. With a dataset a share of each batch is offline episodes, all of which are imitated.

The rule sees the episodes of all processes, and which rows a step learns from depends on their places among all rows
alone: any number of processes makes the same batches.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import fmean
from typing import Any, NamedTuple

import torch
from peft import get_peft_model
from torch import Tensor
from transformers import Trainer, TrainingArguments

from env_servers.play import Played
from env_servers.seeding import hash_seed
from env_servers.tasks import load_task
from trainers.adapters import LoraSettings, lora_config
from trainers.bc import imitate
from trainers.filters import check_rule, filter_trajectories
from trainers.monitor import Measured
from trainers.rollouts import sampled_sequences
from trainers.rounds import PlayedRound, PlaysRounds, RoundSettings
from trainers.runs import make_renderer
from trainers.sequences import row_collator
from trainers.sharding import sharding_checkpoints
from trainers.tokens import IGNORED, Renderer

KEPT, KEPT_RETURN = "filter/kept", "filter/return"


@dataclass
class OnlineBCConfig(RoundSettings, TrainingArguments):
    """`transformers.TrainingArguments` with online filtered BC's settings.

    bfloat16 and gradient checkpointing are on where there is a GPU that does them. `max_steps` follows from `rounds`.
    """

    learning_rate: float = field(default=1e-5, metadata={"help": "Learning rate."})
    lr_scheduler_type: str = field(default="constant", metadata={"help": "Schedule of the learning rate."})
    bf16: bool | None = field(  # type: ignore[assignment]
        default=None, metadata={"help": "Compute in bfloat16; None is only on a GPU that has it."}
    )
    logging_nan_inf_filter: bool = field(default=False, metadata={"help": "Hide losses that are no numbers."})
    rollouts: int = field(default=128, metadata={"help": "Episodes of a round, of all processes together."})
    steps_per_round: int = field(default=16, metadata={"help": "Steps of the optimiser after each round's play."})
    batch_size: int = field(default=32, metadata={"help": "Sequences of a step, of all processes together."})
    filter: str = field(default="top:30", metadata={"help": "Which episodes are imitated, see trainers.filters."})
    buffer_rounds: int = field(default=1, metadata={"help": "The rule chooses among so many last rounds; 0 is all."})
    offline_share: float = field(default=0.0, metadata={"help": "Share of a batch that is rows of bc_dataset."})

    def __post_init__(self) -> None:
        on_gpu = torch.cuda.is_available() and not self.use_cpu
        self.remove_unused_columns = False
        self.dataloader_pin_memory = self.dataloader_pin_memory and on_gpu
        if self.bf16 is None:
            self.bf16 = not self.fp16 and on_gpu and torch.cuda.is_bf16_supported()
        if self.gradient_checkpointing is None and self.activation_checkpointing is None:
            self.activation_checkpointing = on_gpu and not sharding_checkpoints()
        super().__post_init__()
        check_rule(self.filter)
        self.check_positive("steps_per_round", "batch_size")
        if self.buffer_rounds < 0:
            raise ValueError(f"buffer_rounds is {self.buffer_rounds}; allowed are 0 (all rounds) and up")
        if not 0 <= self.offline_share < 1:
            raise ValueError(f"offline_share is {self.offline_share}; allowed are numbers from 0 to below 1")


class Candidate(NamedTuple):
    """What the rule looks at of an episode, and where its rows are; small enough to be told to all processes.

    Attributes:
        place: In the train split, of all rounds.
        episode_id: As in `Trajectory`, as are the next three.
        episode_return: See there.
        success: See there.
        info: See there: the start state alone.
        rows: How many sequences it makes.
    """

    place: int
    episode_id: str
    episode_return: float
    success: bool
    info: Mapping[str, Any]
    rows: int


class Kept(NamedTuple):
    """What a round learns from.

    Attributes:
        candidates: The chosen episodes, in the order of their places.
        rows: This process's rows of them, by place, each with `input_ids` and `labels`.
    """

    candidates: list[Candidate]
    rows: dict[int, list[dict[str, list[int]]]]


def rows_of(played: Played) -> list[dict[str, list[int]]]:
    """An episode as rows `input_ids` and `labels`, by the very ids that were sampled."""
    return [
        {
            "input_ids": one.input_ids,
            "labels": [token if acts else IGNORED for token, acts in zip(one.input_ids, one.action_mask, strict=True)],
        }
        for one in sampled_sequences(played)
    ]


def batch_numbers(total: int, size: int, step: int, seed: int) -> list[int]:
    """The rows of one step, numbers below `total`: passes over all of them in random order, cut into batches.

    Args:
        total: How many rows there are.
        size: Of a batch.
        step: Of the round, from 0.
        seed: Of the round's order.
    """
    chosen: list[int] = []
    first = step * size
    for number in range(first // total, (first + size - 1) // total + 1):
        order = torch.randperm(total, generator=torch.Generator().manual_seed(hash_seed(seed, number))).tolist()
        chosen += order[max(first - number * total, 0) : first + size - number * total]
    return chosen


class OnlineBCTrainer(PlaysRounds, Measured, Trainer):
    """Plays rounds of a task, and imitates the best episodes.

    Args:
        model: A causal language model.
        args: Settings.
        task: Task id.
        processing_class: The model's tokenizer.
        peft_config: Learn adapters of this form; None learns all weights.
        bc_dataset: Rows of `trainers.sequences.build_dataset`, of which `offline_share` of each batch is drawn.
        renderer: How it reads episodes; None is what suits the model.
        env_kwargs: Options of the environment.
        env: Servers that are played on, see `env_servers.client.remote_envs`; None plays here.
        name: Goes into the records of its episodes.
        transcripts: Folder for sample episodes of each round; None writes none.

    Raises:
        ValueError: `offline_share` is above 0, and there is no dataset.
    """

    def __init__(
        self,
        model: Any,
        args: OnlineBCConfig,
        task: str,
        processing_class: Any,
        *,
        peft_config: LoraSettings | None = None,
        bc_dataset: Any = None,
        renderer: Renderer | None = None,
        env_kwargs: Mapping[str, Any] | None = None,
        env: str | None = None,
        name: str = "online-bc",
        transcripts: Path | None = None,
        **options: Any,
    ) -> None:
        if args.offline_share and bc_dataset is None:
            raise ValueError(f"offline_share is {args.offline_share}, but there is no dataset to draw it from")
        renderer = renderer or make_renderer(model, processing_class, load_task(task).spec, None, None)
        if peft_config is not None:
            with torch.random.fork_rng(devices=[]):  # adapters begin at random, and alike in all processes
                torch.manual_seed(args.seed)
                model = get_peft_model(model, lora_config(model, peft_config, task_type="CAUSAL_LM"))
        options.setdefault("eval_dataset", [] if args.eval_strategy != "no" else None)  # it asks for one, in vain
        super().__init__(model=model, args=args, processing_class=processing_class, **options)
        self.model_accepts_loss_kwargs = True
        self._bc_dataset, self._collate = bc_dataset, row_collator(processing_class)
        # A process without a row calls the model all the same; nothing of this one is learned.
        self._filler = {"input_ids": [int(min(renderer.stop_ids))] * 2, "labels": [IGNORED] * 2}
        self._own: dict[int, tuple[list[Candidate], list[Played]]] = {}  # of this process, by round
        self.prepare_rounds(task, renderer, env_kwargs=env_kwargs, env=env, name=name, transcripts=transcripts)

    def oldest_needed(self, number: int) -> int:
        """The first round that the rule chooses from in round `number`."""
        args: Any = self.args
        return max(0, number + 1 - args.buffer_rounds) if args.buffer_rounds else 0

    def play_round(self, number: int) -> Kept:
        """Play a round, choose, and log it.

        Raises:
            ValueError: The rule leaves nothing.
            EpisodeError: No episode could be played.
        """
        found: PlayedRound = self.play(number)
        kept = self._choose(number, found.played)
        returns = [candidate.episode_return for candidate in kept.candidates]
        self.log({**found.metrics, KEPT: float(len(returns)), KEPT_RETURN: fmean(returns)})
        return kept

    def begun_round(self, number: int) -> Kept:
        """The same, from the journals of the rounds that the rule chose from."""
        return self._choose(number, self.replayed(number))

    def _choose(self, number: int, played: list[Played]) -> Kept:
        """What the rule keeps of the last rounds."""
        args: Any = self.args
        first = self.oldest_needed(number)
        own = {place: episodes for place, episodes in self._own.items() if first <= place < number}
        for earlier in range(first, number):
            if earlier not in own:
                own[earlier] = self._read(self.replayed(earlier))
        own[number] = self._read(played)
        self._own = own
        candidates = self.gathered([one for at in sorted(own) for one in own[at][0]])
        try:
            chosen = filter_trajectories(sorted(candidates), args.filter)
        except ValueError as error:
            raise ValueError(
                f"round {number}: {error}; or let the rule choose from more rounds (buffer_rounds), or begin with a "
                "better policy"
            ) from error
        places = {candidate.place for candidate in chosen}
        episodes = {one.trajectory.index: one for _, played in own.values() for one in played}
        return Kept(chosen, {place: rows_of(episodes[place]) for place in sorted(places & episodes.keys())})

    def _read(self, played: list[Played]) -> tuple[list[Candidate], list[Played]]:
        found = []
        for one in played:
            episode = one.trajectory
            start = {"start": episode.info.get("start")}
            numbers = (episode.index, episode.episode_id, episode.episode_return, episode.success)
            found.append(Candidate(*numbers, start, len(sampled_sequences(one))))
        return found, played

    def round_batches(self, known: Kept, number: int, begun: int) -> Iterator[dict[str, Any]]:
        """Steps on rows of the chosen episodes, and of the dataset."""
        args: Any = self.args
        numbered = [(one.place, row) for one in known.candidates for row in range(one.rows)]
        offline = round(args.offline_share * args.batch_size)
        for step in range(begun, args.steps_per_round):
            seed = hash_seed("online-bc", args.seed, number)
            chosen = batch_numbers(len(numbered), args.batch_size - offline, step, seed)
            mine = [known.rows[place][row] for place, row in (numbered[n] for n in chosen) if place in known.rows]
            yield from self._parts(mine + self._offline_rows(offline, number * args.steps_per_round + step))

    def _offline_rows(self, count: int, step: int) -> list[dict[str, list[int]]]:
        """This process's part of the offline rows of a step."""
        draws = torch.Generator().manual_seed(hash_seed("offline", self.args.seed, step))
        numbers = torch.randint(max(len(self._bc_dataset or ()), 1), (count,), generator=draws).tolist()
        mine = numbers[self.rollouts.process :: self.rollouts.processes]
        return [{name: self._bc_dataset[n][name] for name in ("input_ids", "labels")} for n in mine]

    def _parts(self, rows: Sequence[dict[str, list[int]]]) -> Iterator[dict[str, Any]]:
        """A step's rows of this process in as many batches as gradients are accumulated over."""
        parts = self.args.gradient_accumulation_steps
        rows = sorted(rows, key=lambda row: len(row["input_ids"]))
        cuts = [len(rows) * part // parts for part in range(parts + 1)]
        for part in range(parts):
            yield self._collate(rows[cuts[part] : cuts[part + 1]] or [self._filler])

    def compute_loss(
        self,
        model: Any,
        inputs: dict[str, Tensor],
        return_outputs: bool = False,
        num_items_in_batch: Tensor | int | None = None,
    ) -> Any:
        """The loss of one batch, as `Trainer` wants it: a sum over its targets by the number of the whole step's."""
        loss = imitate(model, inputs, num_items_in_batch).loss
        if self.args.average_tokens_across_devices and num_items_in_batch is not None:
            loss = loss * self.accelerator.num_processes  # DDP takes the mean over processes, the count is of all
        return (loss, {}) if return_outputs else loss

    def log(self, logs: dict[str, float], start_time: float | None = None) -> None:
        """As in `Trainer`.

        Raises:
            FloatingPointError: The loss is no number any more.
        """
        if not math.isfinite(logs.get("loss", 0.0)):
            raise FloatingPointError(
                f"the loss is {logs['loss']} after {self.state.global_step} steps: training has diverged. Lower the "
                "learning rate (--lr)"
            )
        super().log(logs, start_time)
