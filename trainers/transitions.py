"""Episodes as the transitions that value methods learn from, one per action token, and batches of them.

The step of the decision process is one token of the agent (ILQL: Snell et al., arXiv 2206.11871; LMRL-Gym, arXiv
2311.18232, section 5). Its state is the text before it, its successor the state before the agent's next token: within
an action the next token, after an action the end of the next prompt. What the environment says in between is part of
the successor. A terminated episode has no successor at its end; a truncated one has the prompt that would have come.
Where that is not known (Maze says only `Failure` at its limit), the last action is left out: its successor's value
would be a guess about a text that is no state.

A row is one `TokenSequence`, with the prompt that follows its last action where that is not in the row itself: the
newest observation alone where that is the whole state, or the next stretch of an episode that outgrew the context. In
a batch, such a prompt is mostly the beginning of another row; where it is not, it is added as a row without actions.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import chain
from typing import Any, NamedTuple

import pyarrow as pa
import torch
from datasets import Dataset, Features, List, Value
from torch import Tensor

from env_servers.seeding import hash_seed
from env_servers.trajectory import Trajectory
from trainers.losses import returns_to_go
from trainers.tokens import Renderer, TokenSequence, encode

TRANSITION_FEATURES = Features(
    {
        "input_ids": List(Value("int32")),
        "places": List(Value("int32")),
        "rewards": List(Value("float32")),
        "discounts": List(Value("float32")),
        "returns": List(Value("float32")),
        "next_prompt": List(Value("int32")),
        "bootstrap": Value("bool"),
        "length": Value("int32"),
        "weight": Value("float32"),
    }
)
DISCOUNTS = ("token", "turn")
ROWS_PER_CHUNK = 1024


class Discounting(NamedTuple):
    """How rewards count.

    Attributes:
        gamma: Discount factor in [0, 1].
        per: `token`, the reference's: each of the agent's tokens discounts. `turn`: each of its actions does, so that
            the value does not depend on how many tokens an action has.
        scale: What all rewards are multiplied by, above 0. The conservative term compares values on a scale of 1, so
            where rewards are small beside that it hides them.
    """

    gamma: float = 0.99
    per: str = "token"
    scale: float = 1.0


def check_discounting(discounting: Discounting) -> None:
    """Raise a ValueError unless the values are allowed."""
    if discounting.per not in DISCOUNTS:
        raise ValueError(f"discount is {discounting.per!r}; allowed: {', '.join(DISCOUNTS)}")
    if not 0 <= discounting.gamma <= 1:
        raise ValueError(f"gamma is {discounting.gamma}; allowed are numbers from 0 to 1")
    if not discounting.scale > 0:
        raise ValueError(f"reward scale is {discounting.scale}; it must be above 0")


def to_transition_rows(sequences: Sequence[TokenSequence], discounting: Discounting) -> list[dict[str, Any]]:
    """One episode's sequences as rows of `TRANSITION_FEATURES`.

    For each action token in order, `places` has its position in `input_ids`, `rewards` its reward, `discounts` what
    its successor's value is multiplied by, `returns` the discounted sum of rewards from it to the end of the episode,
    across sequences. `next_prompt` is empty where the successor of the last action token needs no other row, and
    `bootstrap` false where it has none. An episode of one action with an unknown successor has no rows.
    """
    places = [[n for n, acts in enumerate(sequence.action_mask) if acts] for sequence in sequences]
    discounts = [_discounts(own, discounting) for own in places]
    scale = discounting.scale
    rewards = [[scale * s.rewards[place] for place in own] for s, own in zip(sequences, places, strict=True)]
    flat = [torch.tensor(list(chain.from_iterable(lists)), dtype=torch.float64) for lists in (rewards, discounts)]
    returns = returns_to_go(*flat).tolist()
    rows = []
    for number, sequence in enumerate(sequences):
        last = number == len(sequences) - 1
        after = sequence.final_observation_ids or [] if last else _first_prompt(sequences[number + 1])
        rows.append(
            {
                "input_ids": sequence.input_ids,
                "places": places[number],
                "rewards": rewards[number],
                "discounts": discounts[number],
                "returns": returns[: len(places[number])],
                "next_prompt": after,
                "bootstrap": not (last and sequence.terminated),
                "length": len(sequence.input_ids),
                "weight": 1.0,
            }
        )
        returns = returns[len(places[number]) :]
    if sequences[-1].truncated and sequences[-1].final_observation_ids is None:
        rows[-1:] = _without_last_action(rows[-1])
    return rows


def _without_last_action(row: dict[str, Any]) -> list[dict[str, Any]]:
    """The row up to the last action's prompt, which is the end of what is left; no row where nothing is left."""
    places = row["places"]
    begin = max(n for n, place in enumerate(places) if n == 0 or places[n - 1] != place - 1)
    if begin == 0:
        return []
    ids = row["input_ids"][: places[begin]]
    cut = {name: row[name][:begin] for name in ("places", "rewards", "discounts", "returns")}
    return [{**row, **cut, "input_ids": ids, "length": len(ids)}]


def _first_prompt(sequence: TokenSequence) -> list[int]:
    return sequence.input_ids[: sequence.action_mask.index(1)]


def _discounts(places: Sequence[int], discounting: Discounting) -> list[float]:
    """Between two actions there is at least one token of the environment, so a gap is the end of an action."""
    if discounting.per == "token":
        return [discounting.gamma] * len(places)
    ends = [after != place + 1 for place, after in zip(places, [*places[1:], -1], strict=True)]
    return [discounting.gamma if end else 1.0 for end in ends]


def build_transitions(trajectories: Iterable[Trajectory], renderer: Renderer, discounting: Discounting) -> Dataset:
    """Episodes as rows of `TRANSITION_FEATURES`, which stay in memory as Arrow; the trajectories are read one by one.

    Raises:
        ValueError: There are no trajectories, one cannot be encoded, or the discounting is not allowed.
    """
    check_discounting(discounting)
    schema = TRANSITION_FEATURES.arrow_schema
    chunks = _chunks(trajectories, renderer, discounting)
    tables = [pa.Table.from_pylist(rows, schema=schema) for rows in chunks]
    if not tables:
        raise ValueError("there are no trajectories to train on; check the dataset, its split and the filter")
    return Dataset(pa.concat_tables(tables))


def _chunks(
    trajectories: Iterable[Trajectory], renderer: Renderer, discounting: Discounting
) -> Iterator[list[dict[str, Any]]]:
    rows: list[dict[str, Any]] = []
    for trajectory in trajectories:
        rows += to_transition_rows(encode(trajectory, renderer), discounting)
        if len(rows) >= ROWS_PER_CHUNK:
            yield rows
            rows = []
    if rows:
        yield rows


def merge_transitions(dataset: Dataset, limit: int, multiple_of: int = 1) -> Dataset:
    """The distinct rows with their number as `weight`, if there are at most `limit`; else the dataset as it is.

    Rows that differ in `returns` alone become one with the mean: the gradient of a squared error against several
    numbers is that against their mean, so often. Where all distinct rows fit into one batch, as in Maze, every step
    has the gradient of all the data, without noise and for a fraction of the work. Rows of weight 0 make the number a
    multiple of `multiple_of`, so that no process has a shorter batch than another.
    """
    merged = MergedRows()
    for batch in dataset.iter(ROWS_PER_CHUNK):
        for values in zip(*(batch[name] for name in TRANSITION_FEATURES), strict=True):
            merged.add(dict(zip(TRANSITION_FEATURES, values, strict=True)))
        if len(merged) > limit:
            return dataset
    rows = merged.rows()
    rows += [{**rows[0], "weight": 0.0}] * (-len(rows) % multiple_of)
    return Dataset.from_list(rows, features=TRANSITION_FEATURES)


class MergedRows:
    """Rows of `TRANSITION_FEATURES`, of which those that differ in `returns` alone become one with their mean."""

    def __init__(self) -> None:
        self._found: dict[tuple[Any, ...], dict[str, Any]] = {}

    def __len__(self) -> int:
        return len(self._found)

    def add(self, row: Mapping[str, Any]) -> None:
        """Add a row with its weight."""
        key = (*(tuple(row[name]) for name in ("input_ids", "rewards", "next_prompt")), row["bootstrap"])
        if (kept := self._found.get(key)) is None:
            self._found[key] = {**row, "returns": [value * row["weight"] for value in row["returns"]]}
            return
        kept["weight"] += row["weight"]
        kept["returns"] = [a + b * row["weight"] for a, b in zip(kept["returns"], row["returns"], strict=True)]

    def digests(self) -> list[int]:
        """A number for each distinct row, the same wherever it is."""
        return [hash_seed("row", repr(key)) for key in self._found]

    def rows(self) -> list[dict[str, Any]]:
        """The distinct rows, each with the sum of its weights."""
        return [{**row, "returns": [value / row["weight"] for value in row["returns"]]} for row in self._found.values()]


def token_ids(dataset: Dataset) -> list[int]:
    """All ids that are action tokens somewhere in rows of `build_transitions`, in order."""
    found: set[int] = set()
    for batch in dataset.iter(ROWS_PER_CHUNK):
        for ids, places in zip(batch["input_ids"], batch["places"], strict=True):
            found.update(ids[place] for place in places)
    return sorted(found)


def transition_collator(pad_token_id: int) -> Callable[[Sequence[dict[str, Any]]], dict[str, Tensor]]:
    """A data collator for rows of `build_transitions`.

    It gives `input_ids` and `attention_mask`, each (B, T), padded on the right and with rows added for prompts that
    follow and are not in the batch; and for the N action tokens of the batch, each (N,):

        states        place in the flattened (B T) of the token before, whose hidden state is the state's
        tokens        the token
        next_states   place of the successor; any place where there is none
        bootstrap     1.0, or 0.0 where there is no successor
        rewards, discounts, returns, weights
    """

    def collate(rows: Sequence[dict[str, Any]]) -> dict[str, Tensor]:
        texts = [row["input_ids"] for row in rows]
        known = {tuple(row["input_ids"][: row["places"][0]]): number for number, row in reversed(list(enumerate(rows)))}
        for row in rows:
            prompt = tuple(row["next_prompt"])
            if prompt and prompt not in known:
                known[prompt] = len(texts)
                texts.append(list(prompt))
        lengths = torch.tensor([len(text) for text in texts])
        longest = int(lengths.max())
        flat: dict[str, list[float]] = {
            name: []
            for name in ("states", "tokens", "next_states", "bootstrap", "rewards", "discounts", "returns", "weights")
        }
        for number, row in enumerate(rows):
            first, places = number * longest, row["places"]
            after = tuple(row["next_prompt"])
            end = known[after] * longest + len(after) - 1 if after else first + len(row["input_ids"]) - 1
            flat["states"] += [first + place - 1 for place in places]
            flat["tokens"] += [row["input_ids"][place] for place in places]
            flat["next_states"] += [*(first + place - 1 for place in places[1:]), end]
            flat["bootstrap"] += [1.0] * (len(places) - 1) + [float(row["bootstrap"])]
            flat["weights"] += [row["weight"]] * len(places)
            for name in ("rewards", "discounts", "returns"):
                flat[name] += row[name]
        whole = ("states", "tokens", "next_states")
        batch = {n: torch.tensor(v, dtype=torch.long if n in whole else torch.float32) for n, v in flat.items()}
        batch["input_ids"] = torch.tensor([[*text, *[pad_token_id] * (longest - len(text))] for text in texts])
        batch["attention_mask"] = (torch.arange(longest)[None] < lengths[:, None]).long()
        return batch

    return collate
