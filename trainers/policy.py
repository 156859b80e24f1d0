"""`LanguageModelPolicy`: a causal language model that plays a task.

Sampling is the task's business, not the checkpoint's: a model's `generation_config` (often top_k 50 or a
repetition penalty) is set aside, only its list of end tokens is kept. Every row of a batch draws from its own
episode's generator, so what an episode does depends on no neighbour, up to rounding in the model itself.
"""

from __future__ import annotations

import functools
import random
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from transformers import GenerationConfig, LogitsProcessor, LogitsProcessorList

from env_servers.policy import Action, Context
from env_servers.task import TaskSpec
from trainers.generation import (
    KEPT_BYTES,
    Engine,
    Row,
    UnevenLayersError,
    Writer,
    Written,
    cache_name,
    forward_names,
)
from trainers.gpt2 import is_plain, last_logits
from trainers.tokens import Memory, Renderer

BLOCK = 256  # tokens whose probability is summed before one of them is looked for


@dataclass(frozen=True)
class Sampling:
    """How the next token is drawn. The defaults are plain sampling from the model, as in LMRL-Gym.

    Attributes:
        temperature: Divides the logits; 0 takes the most likely token.
        top_k: Draw among the k most likely tokens; 0 is all.
        top_p: Draw among the fewest most likely tokens that hold this share of the probability; 1.0 is all.
        max_new_tokens: Longest action in tokens, terminator included; None is what the task says.
        rerank: Do not write an action token by token, but score each that the task has, and draw among these. An
            action's score is its log-probability, the sum over its tokens and terminator of
            log softmax(logits)(token), and it is drawn with softmax(scores / temperature).

    Raises:
        ValueError: A value is out of range.
    """

    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    max_new_tokens: int | None = None
    rerank: bool = False

    def __post_init__(self) -> None:
        if not self.temperature >= 0:
            raise ValueError(f"temperature is {self.temperature}; allowed are 0 (greedy) and up")
        if self.top_k < 0:
            raise ValueError(f"top_k is {self.top_k}; allowed are 0 (all tokens) and up")
        if not 0 < self.top_p <= 1:
            raise ValueError(f"top_p is {self.top_p}; allowed is above 0 up to 1 (all tokens)")
        if self.max_new_tokens is not None and self.max_new_tokens < 1:
            raise ValueError(f"max_new_tokens is {self.max_new_tokens}; an action needs at least 1 token")
        if self.rerank and (self.top_k, self.top_p) != (0, 1.0):
            raise ValueError("rerank draws among whole actions; leave out top_k and top_p, which are about tokens")


def sampling_logprobs(logits: Tensor, sampling: Sampling) -> Tensor:
    """Log-probabilities that tokens are drawn with.

    Args:
        logits: The model's, shape (B, V).
        sampling: Temperature first, then top_k, then top_p (Holtzman et al., arXiv 1904.09751, section 3.1).

    Returns:
        Shape (B, V), float64, -inf where a token cannot be drawn.
    """
    scores = logits.double()
    if sampling.temperature == 0:
        best = torch.full_like(scores, -torch.inf)
        return best.scatter(1, scores.argmax(1, keepdim=True), 0.0)
    scores = scores / sampling.temperature
    if 0 < sampling.top_k < scores.size(1):
        worst_kept = scores.topk(sampling.top_k).values[:, -1:]
        scores = scores.masked_fill(scores < worst_kept, -torch.inf)
    if sampling.top_p < 1:
        ordered, places = scores.softmax(1).sort(descending=True, stable=True)
        enough_before = ordered.cumsum(1) - ordered >= sampling.top_p
        scores = scores.masked_fill(enough_before.scatter(1, places, enough_before), -torch.inf)
    return scores.log_softmax(1)


def draw(logprobs: Tensor, uniforms: Tensor) -> Tensor:
    """One token per row by the inverse of the cumulative distribution.

    Args:
        logprobs: Shape (B, V).
        uniforms: Numbers in [0, 1), shape (B,), the only randomness.

    Returns:
        Token ids, shape (B,); never one of probability 0.
    """
    cumulative = logprobs.exp().cumsum(1)
    # The sum may miss 1 by rounding, so the number is scaled to it; `right` steps over tokens of probability 0.
    targets = uniforms[:, None] * cumulative[:, -1:]
    tokens = torch.searchsorted(cumulative, targets, right=True)[:, 0]
    last = (cumulative < cumulative[:, -1:]).sum(1)  # first place that has the whole sum: the last token drawable
    return torch.minimum(tokens, last)


def draw_tokens(logits: Tensor, uniforms: Tensor, sampling: Sampling) -> tuple[Tensor, Tensor]:
    """Draw one token per row, as `draw` does from `sampling_logprobs`, in fewer passes over the vocabulary.

    Args:
        logits: The model's, shape (B, V).
        uniforms: As in `draw`.
        sampling: How to draw.

    Returns:
        Token ids and the log-probabilities that they were drawn with (float64), shape (B,) each.
    """
    few = logits.size(1) <= 4 * BLOCK
    if few or sampling.temperature == 0 or 0 < sampling.top_k < logits.size(1) or sampling.top_p < 1:
        logprobs = sampling_logprobs(logits, sampling)
        tokens = draw(logprobs, uniforms)
        return tokens, logprobs.gather(1, tokens[:, None])[:, 0]
    scores = logits if logits.dtype == torch.float64 else logits.float()
    scores = scores / sampling.temperature if sampling.temperature != 1 else scores
    greatest = scores.max(1, keepdim=True).values
    weights = torch.nn.functional.pad((scores - greatest).exp_(), (0, -scores.size(1) % BLOCK))
    blocks = weights.view(len(weights), -1, BLOCK)
    cumulative = blocks.sum(2, dtype=torch.float64).cumsum(1)
    total = cumulative[:, -1:]
    targets = uniforms[:, None] * total
    last = (cumulative < total).sum(1, keepdim=True)
    block = torch.minimum(torch.searchsorted(cumulative, targets, right=True), last)
    before = torch.nn.functional.pad(cumulative, (1, 0)).gather(1, block)
    inside = blocks.gather(1, block[:, :, None].expand(-1, 1, BLOCK))[:, 0].double().cumsum(1)
    last = (inside < inside[:, -1:]).sum(1, keepdim=True)
    place = torch.minimum(torch.searchsorted(inside, targets - before, right=True), last)
    chosen = block * BLOCK + place
    logprobs = (scores.gather(1, chosen) - greatest).double() - total.log()
    return chosen[:, 0], logprobs[:, 0]


class Drawing(LogitsProcessor):
    """Draws each row's token and leaves only that one, so that greedy `generate` takes it.

    Args:
        uniforms: Shape (B, T), one column per new token.
        sampling: How to draw.
    """

    def __init__(self, uniforms: Tensor, sampling: Sampling) -> None:
        self._uniforms, self._sampling = uniforms, sampling
        self.logprobs: list[Tensor] = []

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        """Arguments and result as in transformers: ids (B, T), scores (B, V)."""
        tokens, logprobs = draw_tokens(scores, self._uniforms[:, len(self.logprobs)], self._sampling)
        self.logprobs.append(logprobs)
        return torch.full_like(scores, -torch.inf).scatter(1, tokens[:, None], 0.0)


class LanguageModelPolicy:
    """A causal language model as `env_servers.policy.Policy`.

    Args:
        model: A Hugging Face causal language model, on its device.
        tokenizer: Its tokenizer.
        spec: The task's constants.
        rendering: `plain` or `chat`, see `trainers.tokens`.
        sampling: How the next token is drawn.
        name: Goes into every record, such as `lmrl/maze-bc@0123abcd`.
        max_length: Most tokens of prompt and action; None is what the model's positions allow.
        memory: As in `Renderer`; `task` is what the task says.
        action_room: As in `Renderer`; a larger `sampling.max_new_tokens` takes its place.
        batch_size: Most prompts in one call of the model.
        revision: Commit of the repository, or hash of the folder, that the model is from.
        kept_bytes: Most memory for what is kept of episodes between their turns, see `trainers.generation`.

    Attributes:
        engine: Who writes the actions in place of the model here, see `trainers.generators`; None is the model.

    Raises:
        ValueError: As in `Renderer`, or `max_length` is more than the model has positions.
    """

    def __init__(
        self,
        model: Any,
        tokenizer: Any,
        spec: TaskSpec,
        *,
        name: str,
        rendering: str = "plain",
        sampling: Sampling | None = None,
        max_length: int | None = None,
        memory: Memory = "task",
        action_room: int | None = None,
        batch_size: int = 64,
        revision: str | None = None,
        kept_bytes: int = KEPT_BYTES,
    ) -> None:
        self.model, self.name, self.revision = model.eval(), name, revision
        self.sampling, self.batch_size = sampling or Sampling(), batch_size
        if self.sampling.rerank and not spec.actions:
            raise ValueError(f"rerank needs a task with a fixed set of actions, which {spec.id} does not have")
        if batch_size < 1:
            raise ValueError(f"batch_size is {batch_size}; at least 1 prompt must be in a batch")
        positions = getattr(model.config.get_text_config(), "max_position_embeddings", None)
        if max_length is not None and positions is not None and max_length > positions:
            raise ValueError(f"max_length is {max_length}, and {name} has positions for {positions} tokens; lower it")
        limit = self.sampling.max_new_tokens
        room = limit if action_room is None else max(action_room, limit or 0)
        self.renderer = Renderer(
            tokenizer,
            spec,
            rendering,
            memory=memory,
            max_length=max_length or positions or 1024,
            action_room=room,
        )
        self.max_new_tokens = limit or self.renderer.action_room
        self._text = functools.lru_cache(1 << 16)(self.renderer.action_text)  # many actions are said again and again
        self.stop_ids = self.renderer.stop_ids | end_ids(model, tokenizer)
        self._keeps_last = "logits_to_keep" in forward_names(model)
        # Rows that have ended are filled up with this; the model's own pad id there would set off its warning.
        self._pad_id = min(self.stop_ids - {model.config.get_text_config().pad_token_id}, default=min(self.stop_ids))
        # Nothing of the checkpoint's own generation settings may reach `generate`, which fills in what is unset.
        make_config: Any = GenerationConfig
        self._generation_config = make_config(
            do_sample=False,
            num_beams=1,
            max_new_tokens=self.max_new_tokens,
            eos_token_id=sorted(self.stop_ids),
            pad_token_id=self._pad_id,
        )
        self._kept_bytes = kept_bytes
        self._writer, self._plain = self._make_writer([model]), False
        self.engine: Engine | None = None

    def _make_writer(self, models: Sequence[Any]) -> Writer:
        self._caches = [cache_name(model) for model in models]
        return Writer(
            models,
            self._last_logits,
            functools.partial(draw_tokens, sampling=self.sampling),
            stop_ids=self.stop_ids,
            pad_id=self._pad_id,
            max_new_tokens=self.max_new_tokens,
            kept_bytes=self._kept_bytes,
        )

    @property
    def rendering(self) -> str:
        """`plain` or `chat`."""
        return self.renderer.rendering

    @property
    def dtype(self) -> str:
        """Of the weights, such as `float32`."""
        return str(self.model.dtype).removeprefix("torch.")

    @property
    def device(self) -> str:
        """Where the model is, such as `cpu` or `cuda:0`."""
        return str(self.model.device)

    def act(self, contexts: Sequence[Context]) -> list[Action]:
        """Answer every context.

        Raises:
            ValueError: A context is of another task, or an observation alone does not fit in `max_length`.
        """
        for context in contexts:
            if context.spec.id != self.renderer.spec.id:
                raise ValueError(f"{self.name} plays {self.renderer.spec.id!r}, not {context.spec.id!r}")
        rows = [
            Row(self._prompt_ids(context), self._uniforms(context.rng), context.rng, self._goes_on(context))
            for context in contexts
        ]
        answer = self._choose if self.sampling.rerank else self._generate
        actions: dict[int, Action] = {}
        # Prompts of about one length share a batch, so that little of it is padding.
        order = sorted(range(len(rows)), key=lambda number: len(rows[number].prompt))
        size = self.batch_size
        if self.engine is None:
            self._plain = len(self._caches) == 1 and is_plain(self.model)
            self._writer.begin(rows)
        else:
            size = max(len(order), 1)  # it makes batches of its own
        for start in range(0, len(order), size):
            part = order[start : start + size]
            actions.update(zip(part, answer([rows[number] for number in part]), strict=True))
        return [actions[number] for number in range(len(contexts))]

    def forget(self) -> None:
        """Keep nothing of the episodes that are being played. Training is noticed; this is for where the model becomes
        another one with the same weights, as when its adapters are switched. An engine takes over the weights."""
        self._writer.forget()
        if self.engine is not None:
            self.engine.refresh()

    def _goes_on(self, context: Context) -> bool:
        """Whether the episode's next prompt will hold all of this one, unless it grows too long."""
        return self.renderer.memory is None or len(context.history) < self.renderer.memory

    def _prompt_ids(self, context: Context) -> list[int]:
        return self.renderer.prompt_ids(context.history, context.observation)

    def _uniforms(self, rng: random.Random) -> list[float]:
        """One number per new token. One draw from the episode's generator, however many tokens are used."""
        if self.sampling.temperature == 0:
            return [0.0] * self.max_new_tokens
        own = random.Random(rng.getrandbits(64))
        return [own.random() for _ in range(self.max_new_tokens)]

    def _generate(self, rows: Sequence[Row]) -> Iterator[Action]:
        if self.engine is not None:
            written = self.engine.write(rows)
        elif self._writer.even:
            try:
                written = self._writer.write(rows)
            except UnevenLayersError:
                written = self._generate_otherwise(rows)
        else:
            written = self._generate_otherwise(rows)
        for row, (tokens, logprobs) in zip(rows, written, strict=True):
            yield self._action(row.prompt, tokens, logprobs)

    def _generate_otherwise(self, rows: Sequence[Row]) -> list[Written]:
        """By transformers' own loop, which knows models with caches of every kind."""
        ids, mask, _ = self._padded([row.prompt for row in rows])
        uniforms = torch.tensor([row.uniforms for row in rows], dtype=torch.float64, device=ids.device)
        drawing = Drawing(uniforms, self.sampling)
        with torch.inference_mode(), with_generation_config(self.model, self._generation_config):
            output = self.model.generate(ids, attention_mask=mask, logits_processor=LogitsProcessorList([drawing]))
        new = output[:, ids.size(1) :].tolist()
        logprobs = torch.stack(drawing.logprobs, dim=1).tolist()
        return [Written(*pair) for pair in zip(new, logprobs, strict=True)]

    def _choose(self, rows: Sequence[Row]) -> Iterator[Action]:
        """One of the task's actions for each prompt, see `Sampling.rerank`."""
        prompts = [row.prompt for row in rows]
        actions = self.renderer.spec.actions
        candidates = [self.renderer.action_ids(text) for text in actions]
        size = max(1, self.batch_size // len(candidates))
        parts = [prompts[start : start + size] for start in range(0, len(prompts), size)]
        scores = torch.cat([self._action_scores(part, candidates) for part in parts])
        numbers = torch.tensor([row.uniforms[0] for row in rows], dtype=torch.float64, device=scores.device)
        chosen = draw(sampling_logprobs(scores, self.sampling), numbers).tolist()
        for prompt, number in zip(prompts, chosen, strict=True):
            yield Action(actions[number], tuple(prompt), tuple(candidates[number]), finish_reason="stop")

    def _action_scores(self, prompts: Sequence[list[int]], candidates: Sequence[list[int]]) -> Tensor:
        """Log-probabilities of whole actions, shape (prompts, candidates), float64."""
        rows = [[*prompt, *candidate] for prompt in prompts for candidate in candidates]
        ids, mask, positions = self._padded(rows)
        keep = max(map(len, candidates))
        lengths = torch.tensor([len(candidate) for candidate in candidates] * len(prompts), device=ids.device)
        with torch.inference_mode():
            logits = self._logits(ids, mask, positions, keep + 1)[:, :-1].double()
            each = logits.log_softmax(-1).gather(-1, ids[:, -keep:, None])[..., 0]
        counts = torch.arange(keep, device=ids.device) >= keep - lengths[:, None]
        return (each * counts).sum(1).view(len(prompts), len(candidates))

    def _padded(self, rows: Sequence[list[int]]) -> tuple[Tensor, Tensor, Tensor]:
        """Token ids, attention mask and positions, each (B, T), padded on the left."""
        longest, device = max(map(len, rows)), self.model.device
        ids = torch.tensor([[self._pad_id] * (longest - len(row)) + row for row in rows], device=device)
        mask = torch.tensor([[0] * (longest - len(row)) + [1] * len(row) for row in rows], device=device)
        return ids, mask, (mask.cumsum(1) - 1).clamp(min=0)

    def _logits(self, ids: Tensor, mask: Tensor, positions: Tensor, keep: int, caches: tuple[Any, ...] = ()) -> Tensor:
        """What tokens are drawn by, at the last `keep` places, shape (B, keep, V), from new tokens (B, T) and what
        the caches hold."""
        shared = {"input_ids": ids, "attention_mask": mask, "position_ids": positions, "use_cache": bool(caches)}
        own = dict(zip(self._caches, caches, strict=False))
        logits: Tensor = self.model(**shared, **own, **self._last(keep)).logits
        return logits[:, -keep:]

    def _last_logits(self, ids: Tensor, mask: Tensor, positions: Tensor, caches: tuple[Any, ...]) -> Tensor:
        """The same for the last place alone, shape (B, V)."""
        if self._plain and self._writer.even:
            return last_logits(self.model, ids, mask, positions, caches[0])
        return self._logits(ids, mask, positions, 1, caches)[:, -1]

    def _last(self, keep: int) -> dict[str, int]:
        """The option that spares the model the logits before the last ones, where it has one."""
        return {"logits_to_keep": keep} if self._keeps_last else {}

    def _action(self, prompt: list[int], tokens: list[int], logprobs: list[float]) -> Action:
        stop = next((number for number, token in enumerate(tokens) if token in self.stop_ids), None)
        length = len(tokens) if stop is None else stop + 1
        return Action(
            text=self._text(tuple(tokens[:length])),
            prompt_ids=tuple(prompt),
            token_ids=tuple(tokens[:length]),
            logprobs=tuple(logprobs[:length]),
            finish_reason="length" if stop is None else "stop",
        )


def end_ids(model: Any, tokenizer: Any) -> frozenset[int]:
    """All ids that the model or its tokenizer ends a text with: some chat models have several."""
    given = model.generation_config.eos_token_id if model.generation_config is not None else None
    listed = given if isinstance(given, list) else [given]
    return frozenset(token for token in [*listed, tokenizer.eos_token_id] if token is not None)


@contextmanager
def with_generation_config(model: Any, config: GenerationConfig) -> Iterator[None]:
    """The model with that generation config in place of its own."""
    # PEFT's `generate` copies the config to the model inside, so that one is put back as well.
    holders = [model, model.get_base_model()] if hasattr(model, "get_base_model") else [model]
    own = [holder.generation_config for holder in holders]
    model.generation_config = config
    try:
        yield
    finally:
        for holder, before in zip(holders, own, strict=True):
            holder.generation_config = before
