"""Online ILQL: implicit language Q-learning from a dataset and from the policy's own episodes, in rounds.

LMRL-Gym (arXiv 2311.18232) names it and gives no algorithm, so this design is ours. Q and V are learned as offline
(`trainers.ilql`), which may be from anybody's episodes; what is added is a replay buffer. In rounds the behaviour
policy, its tokens weighed by the values of now, plays episodes; these join the buffer, as the very ids that were
sampled; and steps follow, each on a batch of which a share is drawn from the own episodes of the last rounds and the
rest from the dataset. The behaviour policy stays as it is.

Which rows a step draws depends on their places among all rows alone: any number of processes makes the same batches.
Where the distinct rows fit into a batch, as in Maze, nothing is drawn: a step has all of them, each with as much weight
as it would have in the mean, and so the gradient of all the data, without noise.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import torch

from env_servers.play import Played
from env_servers.seeding import hash_seed
from env_servers.tasks import load_task
from trainers.ilql import ILQLConfig, ILQLModel, ILQLTrainer
from trainers.online import OnlinePolicy
from trainers.rollouts import sampled_sequences
from trainers.rounds import PlaysRounds, RoundSettings
from trainers.tokens import Renderer, TokenSequence
from trainers.transitions import (
    Discounting,
    MergedRows,
    check_discounting,
    merge_transitions,
    to_transition_rows,
    transition_collator,
)
from trainers.value_policy import ValuePolicy

OWN, OFFLINE = "buffer/own", "buffer/offline"
V_STEPS, V_RATE = 300, 3e-3  # of `fit_v`


@dataclass
class OnlineILQLConfig(RoundSettings, ILQLConfig):
    """Settings of online ILQL beside those of ILQL and of rounds."""

    rollouts: int = field(default=128, metadata={"help": "Episodes of a round, of all processes together."})
    steps_per_round: int = field(default=64, metadata={"help": "Steps of the optimiser after each round's play."})
    offline_steps: int = field(default=0, metadata={"help": "Steps on the dataset alone, before the first round."})
    batch_size: int = field(default=128, metadata={"help": "Sequences of a step, of all processes together."})
    online_share: float = field(default=0.5, metadata={"help": "Share of a batch that is own episodes."})
    buffer_rounds: int = field(default=0, metadata={"help": "Own episodes are of so many last rounds; 0 is all."})
    beta: float = field(default=4.0, metadata={"help": "Weight of the values when playing."})
    reward_scale: float = field(default=1.0, metadata={"help": "What rewards are multiplied by."})

    @property
    def steps_before_rounds(self) -> int:
        """The offline steps."""
        return self.offline_steps

    def __post_init__(self) -> None:
        super().__post_init__()
        check_discounting(self.discounting)
        self.check_positive("steps_per_round", "batch_size")
        for name in ("offline_steps", "buffer_rounds", "beta"):
            if getattr(self, name) < 0:
                raise ValueError(f"{name} is {getattr(self, name)}; allowed are 0 and up")
        if not 0 <= self.online_share <= 1:
            raise ValueError(f"online_share is {self.online_share}; allowed are numbers from 0 to 1")

    @property
    def discounting(self) -> Discounting:
        """How rewards count."""
        return Discounting(self.gamma, self.discount, self.reward_scale)


class OnlineValuePolicy(OnlinePolicy, ValuePolicy):
    """A behaviour policy weighed by values, which reads on from the ids that it sampled."""


def token_sequences(played: Played, policy: OnlinePolicy) -> list[TokenSequence]:
    """An episode as `trainers.tokens.encode` would have it, by the very ids that were sampled.

    Args:
        played: Of that policy.
        policy: Knows what it would have been given after the end.
    """
    episode = played.trajectory
    sequences = [
        TokenSequence(one.input_ids, one.action_mask, one.rewards, one.turns) for one in sampled_sequences(played)
    ]
    final = None
    if episode.truncated and episode.final_observation not in (None, *policy.renderer.spec.closing_texts):
        final = policy.final_prompt(played)
    sequences[-1] = sequences[-1]._replace(
        terminated=episode.terminated, truncated=episode.truncated, final_observation_ids=final
    )
    return sequences


def fit_v(model: ILQLModel, rows: Any, pad_token_id: int, *, steps: int, batch_size: int, seed: int) -> float:
    """Learn V of Q heads that are there already, by the loss that ILQL has for it; all else stays as it is.

    A saved policy has no V, and one from nothing would at once spoil the Q that bootstrap from it.

    Args:
        model: Its targets are Q.
        rows: Of `transitions.build_transitions`.
        pad_token_id: Of its tokenizer.
        steps: Of Adam, at `V_RATE`.
        batch_size: Rows of a step.
        seed: Of the order.

    Returns:
        The last step's loss.
    """
    collate, draws = transition_collator(pad_token_id), torch.Generator().manual_seed(seed)
    optimizer, loss = torch.optim.Adam(model.v.parameters(), lr=V_RATE), torch.zeros(())
    for _ in range(steps):
        merged = MergedRows()
        for number in torch.randint(len(rows), (batch_size,), generator=draws).tolist():
            merged.add(rows[number])
        batch = collate(merged.rows())
        texts = (batch["input_ids"], batch["attention_mask"])
        with torch.no_grad():
            at = model.hidden(model.trunk, *texts)[batch["states"]]
            slow = model.slow_hidden(*texts)[batch["states"]]
            heads = (model.slow_head1, model.slow_head2)
            target = torch.minimum(*(head(slow, batch["tokens"]) for head in heads))
        v = model.v(at).squeeze(-1)
        side = torch.where(target < v, 1 - model.tau, model.tau)
        loss = (side * (v - target).square() * batch["weights"]).sum() / (2 * batch["weights"].sum())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return float(loss)


def _weighed(rows: Sequence[Mapping[str, Any]], factor: float) -> list[dict[str, Any]]:
    """Rows that count so many times as much; those that do not count at all are left out."""
    return [{**row, "weight": row["weight"] * factor} for row in rows if row["weight"] * factor > 0]


class Buffer(NamedTuple):
    """Own episodes that a round learns from.

    Attributes:
        counts: Rows of every episode of all processes, by its place in the train split.
        rows: This process's episodes' rows, by place; of `transitions.TRANSITION_FEATURES`.
    """

    counts: dict[int, int]
    rows: dict[int, list[dict[str, Any]]]

    @property
    def places(self) -> list[tuple[int, int]]:
        """Place and number within it of every row of all processes, in order."""
        return [(place, number) for place, count in sorted(self.counts.items()) for number in range(count)]


class OnlineILQLTrainer(PlaysRounds, ILQLTrainer):
    """ILQL that plays rounds of a task with the values of now, and learns from these and from a dataset.

    Args:
        model: What is learned.
        args: Settings.
        task: Task id.
        processing_class: Tokenizer of the behaviour policy.
        behavior: The behaviour policy, a causal language model; it is frozen.
        offline: Rows of `transitions.build_transitions`.
        renderer: How the behaviour policy reads episodes.
        env_kwargs: Options of the environment.
        env: Servers that are played on, see `env_servers.client.remote_envs`; None plays here.
        name: Goes into the records of its episodes.
        transcripts: Folder for sample episodes of each round; None writes none.
    """

    def __init__(
        self,
        model: ILQLModel,
        args: OnlineILQLConfig,
        task: str,
        processing_class: Any,
        *,
        behavior: Any,
        offline: Any,
        renderer: Renderer,
        env_kwargs: Mapping[str, Any] | None = None,
        env: str | None = None,
        name: str = "online-ilql",
        transcripts: Path | None = None,
        **options: Any,
    ) -> None:
        options.setdefault("eval_dataset", [] if args.eval_strategy != "no" else None)  # it asks for one, in vain
        super().__init__(model, args, **options)
        self.processing_class = processing_class
        self.behavior = behavior.to(args.device).eval().requires_grad_(False)
        self._offline, spec = offline, load_task(task).spec
        merged = merge_transitions(offline, args.batch_size)
        self._distinct: list[dict[str, Any]] | None = None if merged is offline else list(merged)
        pad = processing_class.pad_token_id
        self._collate = transition_collator(int(processing_class.eos_token_id if pad is None else pad))
        # A process without a row calls the model all the same; nothing of this one is learned.
        idle = {"places": [1], "rewards": [0.0], "discounts": [0.0], "returns": [0.0], "next_prompt": []}
        self._filler = {"input_ids": [int(min(renderer.stop_ids))] * 2, **idle, "bootstrap": False, "weight": 0.0}
        self._own: dict[int, dict[int, list[dict[str, Any]]]] = {}  # of this process: rows by round and place
        self.value_range = (args.reward_scale * spec.min_return, args.reward_scale * spec.max_return)
        self.prepare_rounds(task, renderer, env_kwargs=env_kwargs, env=env, name=name, transcripts=transcripts)

    def make_policy(self, acting: ILQLModel, **options: Any) -> OnlineValuePolicy:
        """The behaviour policy, its tokens weighed by the values."""
        args: Any = self.args
        return OnlineValuePolicy(
            self.behavior, self.processing_class, self.renderer.spec, values=acting, beta=args.beta, **options
        )

    def oldest_needed(self, number: int) -> int:
        """The first round whose episodes round `number` learns from."""
        args: Any = self.args
        return max(0, number + 1 - args.buffer_rounds) if args.buffer_rounds else 0

    def play_round(self, number: int) -> Buffer:
        """Play a round, add it to the buffer, and log it.

        Raises:
            EpisodeError: No episode could be played.
        """
        found = self.play(number)
        buffer = self._add(number, found.played)
        rows = float(sum(buffer.counts.values()))
        self.log({**found.metrics, OWN: rows, OFFLINE: float(len(self._offline))})
        return buffer

    def begun_round(self, number: int) -> Buffer:
        """The same, from the journals of the rounds in the buffer."""
        return self._add(number, self.replayed(number))

    def _add(self, number: int, played: list[Played]) -> Buffer:
        first = self.oldest_needed(number)
        own = {place: rows for place, rows in self._own.items() if first <= place < number}
        for earlier in range(first, number):
            if earlier not in own:
                own[earlier] = self._rows(self.replayed(earlier))
        own[number] = self._rows(played)
        self._own = own
        rows = {place: of_episode for at in sorted(own) for place, of_episode in own[at].items()}
        counts = self.gathered([(place, len(of_episode)) for place, of_episode in rows.items()])
        return Buffer(dict(counts), rows)

    def _rows(self, played: list[Played]) -> dict[int, list[dict[str, Any]]]:
        args: Any = self.args
        return {
            one.trajectory.index: to_transition_rows(token_sequences(one, self.policy), args.discounting)
            for one in played
        }

    def batches_before_rounds(self) -> Iterator[dict[str, Any]]:
        """Steps on the dataset alone."""
        args: Any = self.args
        for step in range(self.state.global_step, args.offline_steps):
            yield from self._parts(self._offline_rows(args.batch_size, step))

    def round_batches(self, known: Buffer, number: int, begun: int) -> Iterator[dict[str, Any]]:
        """Steps on rows of own episodes and of the dataset."""
        args: Any = self.args
        places = known.places
        own = round(args.online_share * args.batch_size) if places else 0
        distinct = MergedRows()
        for rows in known.rows.values():
            for row in rows:
                distinct.add(row)
        fits = max(self.gathered([len(distinct)])) <= args.batch_size
        fits = fits and len(set(self.gathered(distinct.digests()))) <= args.batch_size
        every = _weighed(distinct.rows(), own / max(len(places), 1)) if fits else []
        for within in range(begun, args.steps_per_round):
            step = args.offline_steps + number * args.steps_per_round + within
            mine = every
            if not fits:
                chosen = [places[n] for n in self._drawn("own", step, len(places), own)]
                mine = [known.rows[place][row] for place, row in chosen if place in known.rows]
            yield from self._parts(mine + self._offline_rows(args.batch_size - own, step))

    def _offline_rows(self, count: int, step: int) -> list[dict[str, Any]]:
        """This process's part of the dataset's rows of a step."""
        if self._distinct is not None:
            mine = self._distinct[self.rollouts.process :: self.rollouts.processes]
            return _weighed(mine, count / len(self._offline))
        numbers = self._drawn("offline", step, len(self._offline), count)
        columns = self._offline[numbers[self.rollouts.process :: self.rollouts.processes]]
        return [dict(zip(columns, values, strict=True)) for values in zip(*columns.values(), strict=True)]

    def _drawn(self, what: str, step: int, total: int, count: int) -> list[int]:
        """Numbers below `total`, drawn uniformly for a step."""
        draws = torch.Generator().manual_seed(hash_seed(what, self.args.seed, step))
        numbers: list[int] = torch.randint(max(total, 1), (count,), generator=draws).tolist()
        return numbers

    def _parts(self, rows: Sequence[dict[str, Any]]) -> Iterator[dict[str, Any]]:
        """A step's rows of this process, equal ones as one, in as many batches as gradients are accumulated over."""
        merged = MergedRows()
        for row in rows:
            merged.add(row)
        parts = self.args.gradient_accumulation_steps
        distinct = sorted(merged.rows(), key=lambda row: len(row["input_ids"]))
        cuts = [len(distinct) * part // parts for part in range(parts + 1)]
        for part in range(parts):
            yield self._collate(distinct[cuts[part] : cuts[part + 1]] or [self._filler])
