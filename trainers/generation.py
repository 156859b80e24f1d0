"""`Writer`: draws tokens from a model, and keeps what it has computed of an episode for the episode's next turn.

A prompt mostly is the last prompt of its episode, what was said then, and what was answered. The model's keys
and values of all but the answer are there already, so only the answer goes through the model. Prompts whose past has
moved on (a task that shows the last turns alone) go through it from where they differ. Either way the model sees the
same ids in the same positions, so what is written is the same up to rounding.

A batch is laid out as transformers does it, padded on the left, with one tensor for the keys and values of all layers.
Each row's past is copied into its place there, rows that need about as many new tokens go through the model together,
and then all rows go on token by token, until half of them have ended and are left out, and so on.
"""

from __future__ import annotations

import inspect
import random
import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor
from transformers import Cache, DynamicCache
from transformers.cache_utils import DynamicLayer

KEPT_BYTES = 2 << 30
# Splitting a batch costs a call of the model, and is worth it from about so many tokens of padding on.
WORTH_A_CALL = 256
SAMPLE = 256
LEAST_ROOM = 48  # tokens that what is kept may grow by before it is moved


class Row(NamedTuple):
    """What is to be gone on from.

    Attributes:
        prompt: Token ids.
        uniforms: One number in [0, 1) for each token that may be drawn.
        episode: What the episode is known by: its generator. None is known to no one, and nothing is kept.
        goes_on: Whether the episode's next prompt may begin with this one.
    """

    prompt: list[int]
    uniforms: list[float]
    episode: random.Random | None = None
    goes_on: bool = False


class Written(NamedTuple):
    """New token ids, those after the end included, and the log-probabilities that they were drawn with."""

    tokens: list[int]
    logprobs: list[float]


class Engine(Protocol):
    """Whoever writes in place of `Writer`; `trainers.generators` has them."""

    def refresh(self) -> None:
        """Go on with the model's weights as they are now. All processes call it together."""
        ...

    def write(self, rows: Sequence[Row]) -> list[Written]:
        """Draw tokens for rows, to the end of all of them."""
        ...


class Forward(Protocol):
    """Logits of the last place, shape (B, V), from ids and positions (B, T), mask (B, past and T), and caches."""

    def __call__(self, ids: Tensor, mask: Tensor, positions: Tensor, caches: tuple[Any, ...]) -> Tensor: ...


Choose = Callable[[Tensor, Tensor], tuple[Tensor, Tensor]]


class UnevenLayersError(Exception):
    """The layers of a model do not all have keys and values of one shape, on one device."""


class _Batch:
    """Keys and values of one model for a batch: `states` has shape (2 x layers, B, heads, width, head size)."""

    def __init__(self, layers: int, rows: int, width: int) -> None:
        self.layers, self.rows, self.width = layers, rows, width
        self.states: Tensor | None = None

    def like(self, one: Tensor, heads: int, size: int) -> Tensor:
        """The tensor, made on first use with the type and device of `one`."""
        if self.states is None:
            # Zeros, since what is masked still is multiplied, and memory as it was found may hold NaN.
            self.states = one.new_zeros(2 * self.layers, self.rows, heads, self.width, size)
        return self.states

    def whole(self) -> Tensor:
        """The tensor, once the model has run."""
        assert self.states is not None, "the model has run"
        return self.states

    def cache(self, rows: slice, filled: int) -> Cache:
        """As transformers takes it: some rows, in which the first `filled` columns are past."""
        return Cache(layers=[_Layer(self, number, rows, filled) for number in range(self.layers)])


class _Layer(DynamicLayer):  # type: ignore[no-untyped-call]
    """A layer's part of a batch. New columns are written into it, not put into a longer copy."""

    def __init__(self, batch: _Batch, number: int, rows: slice, filled: int) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._batch, self._number, self._rows, self._filled = batch, number, rows, filled

    def update(self, key_states: Tensor, value_states: Tensor, *args: Any, **kwargs: Any) -> tuple[Tensor, Tensor]:
        """As in transformers; each of shape (B, heads, T, head size)."""
        states = self._batch.like(key_states, key_states.size(1), key_states.size(3))
        end = self._filled + key_states.size(2)
        found = []
        for number, new in enumerate((key_states, value_states)):
            whole = states[2 * self._number + number, self._rows]
            if new.shape[:2] != whole.shape[:2] or new.size(3) != whole.size(3) or new.device != whole.device:
                raise UnevenLayersError
            whole[:, :, self._filled : end] = new
            found.append(whole[:, :, :end])
        self._filled = end
        return found[0], found[1]

    def get_seq_length(self) -> int:
        """Number of columns that are past."""
        return self._filled


@dataclass
class _Going:
    """A batch that is being written: B rows, with columns for their prompts, which end at `longest`, and new tokens.

    Attributes:
        numbers: What the rows are called.
        starts: The columns from which on they were read.
        batches: Keys and values, none where they cannot be kept.
        caches: The same for transformers.
        logits: For the next token, shape (B, V).
        mask: Shape (B, columns), as `positions`; `uniforms`, `tokens` and `logprobs` have one column per new token.
        ended: Shape (B,).
    """

    longest: int
    numbers: list[int]
    rows: list[Row]
    starts: list[int]
    batches: list[_Batch]
    caches: tuple[Any, ...]
    logits: Tensor
    mask: Tensor
    positions: Tensor
    uniforms: Tensor
    ended: Tensor
    tokens: Tensor
    logprobs: Tensor

    def select(self, places: list[int], filled: int) -> None:
        """Leave the other rows out; the first `filled` columns have been read."""
        for name in ("numbers", "rows", "starts"):
            setattr(self, name, [getattr(self, name)[place] for place in places])
        for name in ("mask", "positions", "uniforms", "ended", "tokens", "logprobs"):
            setattr(self, name, getattr(self, name)[places])
        for batch in self.batches:
            batch.states, batch.rows = batch.whole()[:, places], len(places)
        self.caches = tuple(batch.cache(slice(0, len(places)), filled) for batch in self.batches)


@dataclass
class _Kept:
    """Of one episode: ids, and the keys and values of each model for them, shape (2 x layers, heads, room, size)."""

    ids: list[int]
    states: list[Tensor]
    used: int

    def __post_init__(self) -> None:
        self.nbytes = sum(states.nbytes for states in self.states)


class Writer:
    """Draws tokens for batches of prompts.

    What is kept of an episode goes with its generator, with any training of the weights, and with `forget`.

    Args:
        models: Those that `forward` runs, each of which has a cache.
        forward: One step of them.
        choose: From logits (B, V) and uniforms (B,), to token ids and their log-probabilities, (B,) each.
        stop_ids: Tokens after which a row has ended.
        pad_id: Token for where there is none.
        max_new_tokens: Most tokens for a row.
        kept_bytes: Most memory for what is kept between turns; 0 keeps nothing. Rows beyond it are read anew.
    """

    def __init__(
        self,
        models: Sequence[Any],
        forward: Forward,
        choose: Choose,
        *,
        stop_ids: frozenset[int],
        pad_id: int,
        max_new_tokens: int,
        kept_bytes: int = KEPT_BYTES,
    ) -> None:
        self._models, self._forward, self._choose = models, forward, choose
        self._stop_ids, self._pad_id, self._max_new_tokens = sorted(stop_ids), pad_id, max_new_tokens
        layers = [plain_layers(model) for model in models]
        self._layers = [number for number in layers if number is not None]
        self._even = len(self._layers) == len(layers)
        self._kept_bytes = kept_bytes
        self._kept: weakref.WeakKeyDictionary[random.Random, _Kept] = weakref.WeakKeyDictionary()
        self._call, self._total = 0, 0
        self._weights: Tensor | None = None
        self._done: set[int] = set()

    @property
    def even(self) -> bool:
        """Whether the models' caches are of the kind that can be kept. Others' may need transformers' own care."""
        return self._even

    def forget(self) -> None:
        """Keep nothing of any episode."""
        self._kept.clear()

    def begin(self, rows: Sequence[Row]) -> None:
        """Say which rows are written next, in any number of batches: what is kept of them makes no room for others."""
        weights = sample_of(self._models)
        if self._weights is None or not torch.equal(weights, self._weights):
            self.forget()
        self._weights = weights
        self._call += 1
        self._done.clear()
        for row in rows:
            if row.episode is not None and (kept := self._kept.get(row.episode)) is not None:
                kept.used = self._call
        self._total = sum(kept.nbytes for kept in self._kept.values())

    def write(self, rows: Sequence[Row]) -> list[Written]:
        """Draw tokens for one batch, to the end of all its rows.

        Raises:
            UnevenLayersError: The models turn out not to be `even`.
        """
        with torch.inference_mode():
            pasts = [self._past(row) for row in rows]
            order = sorted(range(len(rows)), key=lambda n: len(rows[n].prompt) - pasts[n])
            try:
                going = self._begin([rows[n] for n in order], [pasts[n] for n in order])
            except UnevenLayersError:
                self._even = False
                self.forget()
                raise
            written = self._go_on(going)
        return [written[n] for n in sorted(range(len(order)), key=order.__getitem__)]

    def _past(self, row: Row) -> int:
        """How many ids of the prompt are kept, less than all of them."""
        kept = None if row.episode is None else self._kept.get(row.episode)
        if kept is None:
            return 0
        most = min(len(kept.ids), len(row.prompt) - 1)
        if kept.ids[:most] == row.prompt[:most]:
            return most
        return next(n for n, (one, two) in enumerate(zip(kept.ids, row.prompt, strict=False)) if one != two)

    def _begin(self, rows: list[Row], pasts: Sequence[int]) -> _Going:
        """Read the prompts of rows, which are in the order of what is missing of them."""
        longest, device = max(len(row.prompt) for row in rows), self._models[0].device
        ids = [[self._pad_id] * (longest - len(row.prompt)) + row.prompt for row in rows]
        prompts = torch.tensor(ids, device=device)
        lengths = torch.tensor([len(row.prompt) for row in rows], device=device)
        columns = torch.arange(longest + self._max_new_tokens, device=device)
        places = columns - (longest - lengths[:, None])
        mask, positions = (places >= 0).long(), places.clamp(min=0)
        starts, batches = [0] * len(rows), list[_Batch]()
        if self._even:
            batches = [_Batch(layers, len(rows), columns.numel()) for layers in self._layers]
            logits, starts = self._read(rows, pasts, batches, prompts, mask, positions)
            caches: tuple[Any, ...] = tuple(batch.cache(slice(0, len(rows)), longest) for batch in batches)
        else:
            caches = tuple(DynamicCache() for _ in self._models)
            logits = self._forward(prompts, mask[:, :longest], positions[:, :longest], caches)
        uniforms = torch.tensor([row.uniforms for row in rows], dtype=torch.float64, device=device)
        ended = torch.zeros(len(rows), dtype=torch.bool, device=device)
        numbers = list(range(len(rows)))
        tokens = torch.full(uniforms.shape, self._pad_id, device=device)
        logprobs = torch.zeros_like(uniforms)
        return _Going(
            longest, numbers, rows, starts, batches, caches, logits, mask, positions, uniforms, ended, tokens, logprobs
        )

    def _go_on(self, going: _Going) -> dict[int, Written]:
        """Draw and read tokens until all rows have ended; by the rows' numbers."""
        written = dict[int, Written]()
        stops = torch.zeros(going.logits.size(1), dtype=torch.bool, device=going.logits.device)
        stops[[token for token in self._stop_ids if token < len(stops)]] = True
        for step in range(self._max_new_tokens):
            chosen, going.logprobs[:, step] = self._choose(going.logits, going.uniforms[:, step])
            chosen = chosen.masked_fill(going.ended, self._pad_id)
            going.tokens[:, step] = chosen
            going.ended |= stops[chosen]
            ended = going.ended.tolist()
            if all(ended) or step + 1 == self._max_new_tokens:
                break
            if going.batches and 2 * sum(ended) >= len(ended):
                self._finish(going, [n for n, end in enumerate(ended) if end], step, written)
                going.select([n for n, end in enumerate(ended) if not end], going.longest + step)
            column = going.longest + step
            going.logits = self._forward(
                going.tokens[:, step : step + 1],
                going.mask[:, : column + 1],
                going.positions[:, column : column + 1],
                going.caches,
            )
        self._finish(going, range(len(going.rows)), step, written)
        return written

    def _finish(self, going: _Going, places: Sequence[int], step: int, written: dict[int, Written]) -> None:
        """Take what some of the rows have written, and keep them. The token of this step has not been read."""
        tokens, logprobs = going.tokens[:, : step + 1].tolist(), going.logprobs[:, : step + 1].tolist()
        for place in places:
            written[going.numbers[place]] = Written(tokens[place], logprobs[place])
            if going.batches:
                self._keep(going, place, tokens[place][:step])

    def _read(
        self,
        rows: Sequence[Row],
        pasts: Sequence[int],
        batches: Sequence[_Batch],
        prompts: Tensor,
        mask: Tensor,
        positions: Tensor,
    ) -> tuple[Tensor, list[int]]:
        """Logits after the prompts, and for each row the first column that went through the models."""
        longest = prompts.size(1)
        logits, starts = list[Tensor](), list[int]()
        missing = [len(row.prompt) - past for row, past in zip(rows, pasts, strict=True)]
        for part in parts(missing):
            # All of these rows begin in one column: what of a row's own past comes after it, is computed again.
            start = longest - missing[part.stop - 1]
            for number in range(part.start, part.stop):
                self._recall(rows[number], number, longest, start, batches)
            caches = tuple(batch.cache(part, start) for batch in batches)
            new = slice(start, longest)
            logits.append(self._forward(prompts[part, new], mask[part, :longest], positions[part, new], caches))
            starts += [start] * (part.stop - part.start)
        return torch.cat(logits), starts

    def _recall(self, row: Row, number: int, longest: int, start: int, batches: Sequence[_Batch]) -> None:
        """Copy what is kept of a row into its place, up to the column `start`."""
        first = longest - len(row.prompt)
        if row.episode is None or start <= first:
            return
        for batch, kept in zip(batches, self._kept[row.episode].states, strict=True):
            states = batch.like(kept, kept.size(1), kept.size(3))
            states[:, number, :, first:start] = kept[:, :, : start - first]

    def _keep(self, going: _Going, place: int, said: list[int]) -> None:
        """Keep one row, and the tokens that it has said and read."""
        row = going.rows[place]
        if row.episode is None or id(row.episode) in self._done:
            return
        self._done.add(id(row.episode))
        kept = self._kept.pop(row.episode, None)
        self._total -= kept.nbytes if kept is not None else 0
        if not row.goes_on:
            return
        first, end = going.longest - len(row.prompt), going.longest + len(said)
        length, start = end - first, max(going.starts[place], first)
        states = list[Tensor]()
        for number, batch in enumerate(going.batches):
            own, new = kept.states[number] if kept is not None else None, batch.whole()[:, place]
            if own is None or own.size(2) < length:
                more = new.new_empty(*new.shape[:2], length + max(length // 2, LEAST_ROOM), new.size(3))
                if own is not None:
                    more[:, :, : start - first] = own[:, :, : start - first]
                own = more
            own[:, :, start - first : length] = new[:, :, start:end]
            states.append(own)
        self._store(row.episode, _Kept(row.prompt + said, states, self._call))

    def _store(self, episode: random.Random, kept: _Kept) -> None:
        """Keep it, in place of what has not been used for long; or not at all if everything else is in use."""
        if self._total + kept.nbytes > self._kept_bytes:
            idle = sorted((one.used, id(key), key) for key, one in self._kept.items() if one.used < self._call)
            while idle and self._total + kept.nbytes > self._kept_bytes:
                self._total -= self._kept.pop(idle.pop(0)[2]).nbytes
        if self._total + kept.nbytes <= self._kept_bytes:
            self._kept[episode] = kept
            self._total += kept.nbytes


def parts(missing: Sequence[int]) -> list[slice]:
    """Numbers in ascending order, divided where that saves padding worth a call of the model."""
    slices, start = list[slice](), 0
    while start < len(missing):
        stop = len(missing)
        while True:
            saved = [(n - start) * (missing[stop - 1] - missing[n - 1]) for n in range(start + 1, stop)]
            if max(saved, default=0) < WORTH_A_CALL:
                break
            stop = start + 1 + saved.index(max(saved))
        slices.append(slice(start, stop))
        start = stop
    return slices


def sample_of(models: Sequence[Any]) -> Tensor:
    """Some hundred numbers of each parameter of models, which change in training. (Not even torch's own counter of
    changes knows of all: fused optimizers pass it by.)"""
    found, device = list[Tensor](), models[0].device
    with torch.no_grad():
        for parameter in (parameter for model in models for parameter in model.parameters()):
            own = parameter.to_local() if hasattr(parameter, "to_local") else parameter.detach()
            found.append(own.reshape(-1)[:: max(1, own.numel() // SAMPLE)].to(device))
    return torch.cat(found)


def inner(model: Any) -> Any:
    """The model inside one with adapters, or itself."""
    return model.get_base_model() if hasattr(model, "get_base_model") else model


def forward_names(model: Any) -> frozenset[str]:
    """Names of the arguments that a model's forward takes, with adapters or without."""
    return frozenset(inspect.signature(inner(model).forward).parameters)


def cache_name(model: Any) -> str:
    """How the model calls its cache; transformers renamed it."""
    return "cache" if "cache" in forward_names(model) else "past_key_values"


def plain_layers(model: Any) -> int | None:
    """Number of layers of keys and values; None where they are not of the plain kind, one column for each token."""
    config, adapters = model.config.get_text_config(), getattr(model, "active_peft_config", None)
    if model.config.is_encoder_decoder or getattr(adapters, "is_prompt_learning", False):
        return None
    if not {"position_ids", cache_name(model)} <= forward_names(model):
        return None
    layers = DynamicCache(config=config).layers
    return len(layers) if layers and all(type(layer) is DynamicLayer for layer in layers) else None
