"""A round's episodes as rows of tokens: what PPO's passes over them read, and what it knows of each action token.

An episode makes as many rows as `rollouts.sampled_sequences` has sequences, and its action tokens, in order through
all of them, are one chain: the advantage of a token may come from a reward many rows later. So a policy with a short
memory, whose episodes are cut into chunks, learns from the whole episode.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from env_servers.play import Played
from trainers.online import OnlinePolicy
from trainers.ppo_losses import Advantages, gae
from trainers.rollouts import sampled_sequences


class Row(NamedTuple):
    """A stretch of an episode. Where N stands, it has one number for each of its action tokens.

    Attributes:
        episode: The episode's place in the split.
        input_ids: Token ids, shape (T,).
        places: Place before each action token, shape (N,).
        rewards: Reward that the task gave after it, shape (N,).
        ends: Whether it is the last one of its action, shape (N,).
        logprobs: That it was sampled with, shape (N,).
        last: Whether it is the episode's last row.
        next_state: Place of the state after the episode's last action, where its value is needed.
    """

    episode: int
    input_ids: list[int]
    places: list[int]
    rewards: list[float]
    ends: list[bool]
    logprobs: list[float]
    last: bool = False
    next_state: int | None = None


def rows_of(played: Played, policy: OnlinePolicy) -> list[Row]:
    """An episode as rows.

    It is bootstrapped, with the value of the state after its last action, only where a budget of ours cut it: the task
    would have gone on, and what would have come is part of what the actions are worth. At the task's own maximum of
    turns (an end that is among its `end_reasons`, though it counts as truncated) there is nothing more to be had: the
    return, which the task is measured by, ends there, and a value of what follows would be of rewards that nobody gets.

    Raises:
        ValueError: As in `sampled_sequences`.
    """
    episode, rows = played.trajectory, list[Row]()
    for ids, mask, logprobs, rewards, _ in sampled_sequences(played):
        acts = [place for place, of_action in enumerate(mask) if of_action]
        ends = {place for place in acts if place + 1 == len(mask) or not mask[place + 1]}
        rows.append(
            Row(
                episode=episode.index,
                input_ids=ids,
                places=[place - 1 for place in acts],
                rewards=[rewards[place] for place in acts],
                ends=[place in ends for place in acts],
                logprobs=[logprobs[place] for place in acts],
            )
        )
    rows[-1] = rows[-1]._replace(last=True)
    if episode.truncated and episode.end_reason not in policy.renderer.spec.end_reasons:
        prompt = policy.final_prompt(played)
        if prompt is not None and prompt[: len(rows[-1].input_ids)] == rows[-1].input_ids:
            rows[-1] = rows[-1]._replace(input_ids=prompt, next_state=len(prompt) - 1)
        elif prompt is not None:
            rows[-1] = rows[-1]._replace(last=False)
            rows.append(Row(episode.index, prompt, [], [], [], [], last=True, next_state=len(prompt) - 1))
    return rows


def filler(pad_id: int) -> Row:
    """A row for a process that has none, where all have to call the model equally often."""
    return Row(-1, [pad_id, pad_id], [0], [0.0], [True], [0.0])


class Batch(NamedTuple):
    """Rows for `actor_critic.ActorCritic.forward`, and which of its numbers belong to action tokens.

    Attributes:
        inputs: Its arguments from `input_ids` to `tokens`.
        acts: False at states that are only valued, shape (N,).
    """

    inputs: dict[str, Tensor]
    acts: Tensor


def make_batch(rows: Sequence[Row], pad_id: int, *, states: bool = False) -> Batch:
    """Rows padded on the right; with `states` also the `next_state` of those that have one, behind its action tokens.

    At least one of them has to have a token (or state).
    """
    longest = max(len(row.input_ids) for row in rows)
    ids = torch.tensor([row.input_ids + [pad_id] * (longest - len(row.input_ids)) for row in rows])
    lengths = torch.tensor([len(row.input_ids) for row in rows])
    numbers, places, tokens, acts = list[int](), list[int](), list[int](), list[bool]()
    for number, row in enumerate(rows):
        of_row = [*row.places, *([row.next_state] if states and row.next_state is not None else [])]
        numbers += [number] * len(of_row)
        places += of_row
        tokens += [row.input_ids[place + 1] if place + 1 < len(row.input_ids) else 0 for place in of_row]
        acts += [True] * len(row.places) + [False] * (len(of_row) - len(row.places))
    at = torch.tensor(places)
    columns, column_of = torch.unique(at, return_inverse=True)
    inputs = {
        "input_ids": ids,
        "attention_mask": (torch.arange(longest)[None] < lengths[:, None]).long(),
        "rows": torch.tensor(numbers),
        "places": at,
        "columns": columns,
        "column_of": column_of,
        "tokens": torch.tensor(tokens),
    }
    return Batch(inputs, torch.tensor(acts))


def episode_slices(rows: Sequence[Row]) -> Iterator[slice]:
    """Where each episode's action tokens are among those of all rows."""
    start = end = 0
    for row in rows:
        end += len(row.places)
        if row.last:
            yield slice(start, end)
            start = end


def advantages_of(
    rows: Sequence[Row],
    rewards: Tensor,
    values: Tensor,
    bootstrap: Tensor,
    *,
    gamma: float,
    lam: float,
    per_turn: bool = False,
) -> Advantages:
    """Advantages and returns of all rows' action tokens, each of shape (N,), float32.

    Args:
        rows: Whole episodes, in order.
        rewards: Of the tokens, the penalty on divergence included, shape (N,).
        values: Of the states before them, shape (N,).
        bootstrap: Value of the state after each episode, shape (E,); 0 where there is none.
        gamma: Discount of each token, or each turn.
        lam: As in `ppo_losses.gae`, for each token or each turn.
        per_turn: Discount at the last token of an action alone.
    """
    slices = list(episode_slices(rows))
    if not slices:  # a process none of whose episodes could be played
        return Advantages(torch.zeros(0), torch.zeros(0))
    ends = torch.tensor([end for row in rows for end in row.ends])
    decays = [torch.where(ends, factor, 1.0) if per_turn else torch.full(ends.shape, factor) for factor in (gamma, lam)]

    def by_episode(flat: Tensor) -> Tensor:
        return pad_sequence([flat[part] for part in slices], batch_first=True)

    lengths = torch.tensor([part.stop - part.start for part in slices])
    found = gae(
        by_episode(rewards),
        by_episode(values),
        lengths,
        bootstrap,
        gamma=by_episode(decays[0]),
        lam=by_episode(decays[1]),
    )
    inside = torch.arange(int(lengths.max()))[None] < lengths[:, None]
    return Advantages(found.advantages[inside].float(), found.returns[inside].float())


@dataclass
class RoundRows:
    """What a process passes over in a round: its rows, and of all their action tokens together (N) the numbers.

    Attributes:
        rows: Whole episodes, in the order of their places.
        counts: Rows of every episode of the round, also of other processes, by place; these number the rows.
        old_logprobs: Under the policy when the round began.
        old_values: Of the states before the tokens, then.
        advantages: Whitened over the round.
        returns: What values are regressed on.
    """

    rows: list[Row]
    counts: dict[int, int]
    old_logprobs: Tensor
    old_values: Tensor
    advantages: Tensor
    returns: Tensor
    _starts: list[int] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._starts = [0]
        for row in self.rows:
            self._starts.append(self._starts[-1] + len(row.places))

    def minibatches(self, number: int, seed: int) -> list[list[int]]:
        """This process's rows of each minibatch in one pass over the round, drawn from all rows of all processes.

        A row's minibatch depends on the seed and its place among all rows of the round alone, so any number of
        processes makes the same minibatches. A process may have no rows in one.

        Args:
            number: Of minibatches.
            seed: Of the order.
        """
        first, total = dict[int, int](), 0
        for episode, rows in sorted(self.counts.items()):
            first[episode] = total
            total += rows
        order = torch.randperm(total, generator=torch.Generator().manual_seed(seed))
        rank = torch.empty_like(order)
        rank[order] = torch.arange(total)
        ranks = rank.tolist()
        chosen: list[list[tuple[int, int]]] = [[] for _ in range(number)]
        seen = dict[int, int]()
        for mine, row in enumerate(self.rows):
            within = seen.get(row.episode, 0)
            seen[row.episode] = within + 1
            place = ranks[first[row.episode] + within]
            chosen[place * number // total].append((place, mine))
        return [[mine for _, mine in sorted(rows)] for rows in chosen]

    def batch(self, numbers: Sequence[int], pad_id: int) -> dict[str, Tensor]:
        """Some rows with what is known of their tokens; a row of weight 0 where they have no tokens."""
        with_tokens = [number for number in numbers if self.rows[number].places]
        names = ("old_logprobs", "old_values", "advantages", "returns", "weights")
        if not with_tokens:
            return make_batch([filler(pad_id)], pad_id).inputs | {name: torch.zeros(1) for name in names}
        inputs = make_batch([self.rows[number] for number in with_tokens], pad_id).inputs
        spans = [slice(self._starts[number], self._starts[number + 1]) for number in with_tokens]
        for name in names[:-1]:
            inputs[name] = torch.cat([getattr(self, name)[span] for span in spans])
        return {**inputs, "weights": torch.ones_like(inputs["advantages"])}

    def save(self, path: Path) -> None:
        """Write it to a file, whole or not at all."""
        beside = path.with_name(path.name + ".partial")
        torch.save({**vars(self), "rows": [tuple(row) for row in self.rows]}, beside)
        beside.replace(path)


def load_rows(path: Path) -> RoundRows:
    """What `RoundRows.save` wrote."""
    kept: dict[str, Any] = torch.load(path, weights_only=True)
    kept.pop("_starts")
    return RoundRows(**{**kept, "rows": [Row(*row) for row in kept["rows"]]})
