"""Token sequences as a dataset for the trainers: build, merge what repeats, make batches."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import pyarrow as pa
import torch
from datasets import Dataset, Features, List, Value
from torch import Tensor

from env_servers.trajectory import Trajectory
from trainers.tokens import IGNORED, Renderer, encode, labels

SEQUENCE_FEATURES = Features(
    {"input_ids": List(Value("int32")), "labels": List(Value("int32")), "length": Value("int32")}
)
ROWS_PER_CHUNK = 1024


def row_collator(tokenizer: Any) -> Callable[[Sequence[dict[str, Any]]], dict[str, Tensor]]:
    """A data collator for rows of `build_dataset`, or any with `input_ids` and `labels`.

    It gives `input_ids`, `labels`, `attention_mask`, each (B, T), and (B,) `weight` where the rows have one; padding
    is on the right and the attention mask comes from the lengths.
    """
    pad = tokenizer.pad_token_id if tokenizer.pad_token_id is not None else tokenizer.eos_token_id

    def collate_rows(rows: Sequence[dict[str, Any]]) -> dict[str, Tensor]:
        lengths = [len(row["input_ids"]) for row in rows]
        longest = max(lengths)
        padded = {"input_ids": pad, "labels": IGNORED}
        batch = {
            name: torch.tensor([[*row[name], *[value] * (longest - len(row[name]))] for row in rows])
            for name, value in padded.items()
        }
        batch["attention_mask"] = (torch.arange(longest)[None] < torch.tensor(lengths)[:, None]).long()
        if "weight" in rows[0]:
            batch["weight"] = torch.tensor([row["weight"] for row in rows])
        return batch

    return collate_rows


def merge_repeated(dataset: Dataset, limit: int, multiple_of: int = 1) -> Dataset:
    """The distinct rows of a dataset with their number as `weight`, if there are at most `limit`; else the dataset.

    Rows of weight 0 make the number of rows a multiple of `multiple_of`. With the processes times the parts of a
    batch, no process has a shorter batch, which accelerate would fill up with rows that then count twice.

    A task whose newest observation is a full state, such as Maze, has few distinct sequences. Where all of them fit
    into one batch, every step has the gradient of all the data: no noise, and a fraction of the work.
    """
    counts: dict[tuple[tuple[int, ...], tuple[int, ...]], int] = {}
    for batch in dataset.iter(ROWS_PER_CHUNK):
        for ids, row_labels in zip(batch["input_ids"], batch["labels"], strict=True):
            key = (tuple(ids), tuple(row_labels))
            counts[key] = counts.get(key, 0) + 1
        if len(counts) > limit:
            return dataset
    rows = [
        {"input_ids": ids, "labels": row_labels, "length": len(ids), "weight": count}
        for (ids, row_labels), count in counts.items()
    ]
    rows += [{**rows[0], "weight": 0}] * (-len(rows) % multiple_of)
    return Dataset.from_list(rows, features=Features({**SEQUENCE_FEATURES, "weight": Value("int64")}))


def build_dataset(trajectories: Iterable[Trajectory], renderer: Renderer) -> Dataset:
    """Episodes as rows `input_ids`, `labels` (-100 off the agent's tokens) and `length`.

    The trajectories are read one by one; only the tokens stay in memory, as Arrow.

    Raises:
        ValueError: There are no trajectories, or one cannot be encoded, see `trainers.tokens.encode`.
    """
    schema = SEQUENCE_FEATURES.arrow_schema
    tables = [pa.Table.from_pylist(rows, schema=schema) for rows in _chunks(trajectories, renderer)]
    if not tables:
        raise ValueError("there are no trajectories to train on; check the dataset, its split and the filter")
    return Dataset(pa.concat_tables(tables))


def _chunks(trajectories: Iterable[Trajectory], renderer: Renderer) -> Iterator[list[dict[str, Any]]]:
    rows: list[dict[str, Any]] = []
    for trajectory in trajectories:
        for sequence in encode(trajectory, renderer):
            ids = sequence.input_ids
            rows.append({"input_ids": ids, "labels": labels(sequence), "length": len(ids)})
        if len(rows) >= ROWS_PER_CHUNK:
            yield rows
            rows = []
    if rows:
        yield rows
