"""`model:<repository or folder>`: a language model that speaks for the environment, an oracle or a buyer.

Any causal or encoder-decoder model on the Hub, by the paper's prompts or by its own chat template
(`env_servers.prompts`). All episodes' queries are answered in batches. An oracle takes the most likely tokens; a buyer
is sampled, each answer from its own query's generator, so that it does not depend on what is asked beside it. (Padding
changes a model's logits in their last digits. In float32 on a CPU that changes no token in practice; half types on a
GPU are coarser, and there an answer may depend on its batch. What must be repeated exactly is recorded.)
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    AutoModelForSeq2SeqLM,
    AutoTokenizer,
    GenerationConfig,
    LogitsProcessorList,
)

from env_servers.partners import Answer, Query
from env_servers.prompts import VERSION, Message, voice_of
from env_servers.task import EpisodeError
from trainers.chat import DATE, decode, tokenize
from trainers.load import find_policy, load_model, pick_device
from trainers.policy import Drawing, Sampling, end_ids, with_generation_config
from trainers.tokens import newline_ids

PROMPTS = ("paper", "chat")
STAND_IN = "an1 once"  # a text that no chat template has of its own


class ModelPartner:
    """A language model as `env_servers.partners.Partner`.

    Args:
        task: Task id.
        model: A causal or encoder-decoder language model of transformers, on its device.
        tokenizer: Its tokenizer.
        name: Of the model, such as its repository.
        revision: Its commit, or its folder's hash.
        prompt: `paper` or `chat`; None is `chat` where the tokenizer has a chat template.
        temperature: 0 takes the most likely token; None is the task's: 0 for an oracle, 1 for the buyer.
        max_input_tokens: Of a longer prompt the end is kept. None is the paper's for its prompts, and what the model
            can read for chat.
        max_new_tokens: Longest answer; None is the task's.
        batch_size: Most prompts in one call of the model.

    Raises:
        ValueError: A value is not allowed, there is no chat template, or no model can speak for the task.
    """

    def __init__(
        self,
        task: str,
        model: Any,
        tokenizer: Any,
        *,
        name: str,
        revision: str,
        prompt: str | None = None,
        temperature: float | None = None,
        max_input_tokens: int | None = None,
        max_new_tokens: int | None = None,
        batch_size: int = 32,
    ) -> None:
        self._voice, self._model, self._tokenizer = voice_of(task), model.eval(), tokenizer
        self.name = f"model:{name}"
        self.prompt = prompt or ("chat" if tokenizer.chat_template else "paper")
        if self.prompt not in PROMPTS:
            raise ValueError(f"prompt of {self.name} is {prompt!r}; allowed are {', '.join(PROMPTS)}")
        if self.prompt == "chat" and not tokenizer.chat_template:
            raise ValueError(f"the tokenizer of {self.name} has no chat template; leave prompt out, or set it to paper")
        if batch_size < 1:
            raise ValueError(f"batch_size of {self.name} is {batch_size}; at least 1 prompt must be in a batch")
        self._batch_size, self._seq2seq = batch_size, bool(model.config.is_encoder_decoder)
        self._max_new_tokens = self._voice.max_new_tokens if max_new_tokens is None else max_new_tokens
        self._sampling = Sampling(
            self._voice.temperature if temperature is None else temperature, max_new_tokens=self._max_new_tokens
        )
        self._max_input_tokens = self._room(max_input_tokens)
        settings = [f"{self.prompt}-{VERSION}", str(model.dtype).removeprefix("torch.")]
        settings += [
            f"temperature={self._sampling.temperature:g}",
            f"tokens={self._max_input_tokens}/{self._max_new_tokens}",
        ]
        self.revision = "+".join([revision, *settings])
        self._end_ids = end_ids(model, tokenizer)
        stops = self._end_ids | (self._turn_end() if self.prompt == "chat" else newline_ids(tokenizer))
        if not stops:
            raise ValueError(f"{self.name} has no token that ends a text, so that no answer would end")
        self._stop_ids = stops
        given: Any = model.generation_config
        make_config: Any = GenerationConfig
        self._generation_config = make_config(
            do_sample=False,
            num_beams=1,
            max_new_tokens=self._max_new_tokens,
            eos_token_id=sorted(stops),
            pad_token_id=min(stops) if tokenizer.pad_token_id is None else tokenizer.pad_token_id,
            decoder_start_token_id=getattr(given, "decoder_start_token_id", None),
            bos_token_id=getattr(given, "bos_token_id", None),
            forced_bos_token_id=getattr(given, "forced_bos_token_id", None),
        )

    def answer(self, queries: Sequence[Query]) -> list[Answer | EpisodeError]:
        """Answer all queries, prompts of about one length in one call of the model."""
        prompts = [self.prompt_ids(query) for query in queries]
        answers: dict[int, Answer | EpisodeError] = {}
        order = sorted(range(len(prompts)), key=lambda number: len(prompts[number]))
        for start in range(0, len(order), self._batch_size):
            rows = order[start : start + self._batch_size]
            uniforms = [self._uniforms(queries[row]) for row in rows]
            for row, tokens in zip(rows, self._generate([prompts[row] for row in rows], uniforms), strict=True):
                answers[row] = self._read(queries[row], prompts[row], tokens)
        return [answers[number] for number in range(len(queries))]

    def prompt_text(self, query: Query) -> str:
        """What the model reads. It ends in the prefix that an answer must have, so that the model goes on there."""
        if self.prompt == "paper":
            return self._voice.paper(query)
        return self._render(self._voice.chat(query), add_generation_prompt=True) + query.prefix

    def prompt_ids(self, query: Query) -> list[int]:
        """The same as token ids: of a prompt that is too long, the end."""
        text = self.prompt_text(query)
        if self.prompt == "chat":  # the template writes special tokens itself
            ids = list(tokenize(self._tokenizer, text))
        else:
            # What spells a special token in a text is only text.
            ids = list(self._tokenizer(text, split_special_tokens=True, verbose=False)["input_ids"])
            if not self._seq2seq and ids[-1] in self._end_ids:
                ids.pop()  # some tokenizers end every text; a causal model would then begin another one
        return ids[-self._max_input_tokens :]

    def _room(self, wanted: int | None) -> int:
        """Most tokens of a prompt."""
        positions = getattr(self._model.config.get_text_config(), "max_position_embeddings", None) or 1 << 20
        room = positions if self._seq2seq else positions - self._max_new_tokens
        limit = self._voice.max_input_tokens if wanted is None and self.prompt == "paper" else wanted
        if room < 1 or (limit is not None and limit < 1):
            raise ValueError(
                f"{self.name} has positions for {positions} tokens, {self._max_new_tokens} are for an answer and "
                f"{'the rest' if limit is None else limit} for a prompt; both need at least one: lower max_new_tokens"
            )
        return room if limit is None else min(limit, room)

    def _render(self, messages: Sequence[Message], *, add_generation_prompt: bool) -> str:
        listed = [message._asdict() for message in messages]
        text: str = self._tokenizer.apply_chat_template(
            listed, tokenize=False, add_generation_prompt=add_generation_prompt, date_string=DATE
        )
        return text

    def _turn_end(self) -> frozenset[int]:
        """The special token that the chat template puts after the assistant's text, if it does."""
        messages = [Message("user", "a"), Message("assistant", STAND_IN)]
        rest = self._render(messages, add_generation_prompt=False).rpartition(STAND_IN)[2]
        first = tokenize(self._tokenizer, rest)[:1]
        return frozenset(first) & frozenset(self._tokenizer.added_tokens_decoder)

    def _uniforms(self, query: Query) -> list[float]:
        if self._sampling.temperature == 0:
            return [0.0] * self._max_new_tokens
        rng = query.rng()
        return [rng.random() for _ in range(self._max_new_tokens)]

    def _generate(self, prompts: Sequence[list[int]], uniforms: Sequence[list[float]]) -> list[list[int]]:
        """New token ids for each prompt, those after the end included."""
        ids, mask = self._padded(prompts)
        drawing = Drawing(torch.tensor(uniforms, dtype=torch.float64, device=ids.device), self._sampling)
        with torch.inference_mode(), with_generation_config(self._model, self._generation_config):
            output = self._model.generate(ids, attention_mask=mask, logits_processor=LogitsProcessorList([drawing]))
        new: list[list[int]] = output[:, 1 if self._seq2seq else ids.size(1) :].tolist()
        return new

    def _padded(self, rows: Sequence[list[int]]) -> tuple[Tensor, Tensor]:
        """Token ids and attention mask, each (B, T); padded on the left for a causal model, else on the right."""
        pad, longest, device = self._generation_config.pad_token_id, max(map(len, rows)), self._model.device
        ids, mask = [], []
        for row in rows:
            more = longest - len(row)
            left, right = (0, more) if self._seq2seq else (more, 0)
            ids.append([pad] * left + row + [pad] * right)
            mask.append([0] * left + [1] * len(row) + [0] * right)
        return torch.tensor(ids, device=device), torch.tensor(mask, device=device)

    def _read(self, query: Query, prompt: list[int], tokens: list[int]) -> Answer:
        stop = next((number for number, token in enumerate(tokens) if token in self._stop_ids), len(tokens))
        text = decode(self._tokenizer, tokens[: stop + 1], skip_special_tokens=True)
        usage = {"prompt_tokens": len(prompt), "completion_tokens": min(stop + 1, len(tokens))}
        return self._voice.read(text, query)._replace(usage=usage)


def model_partner(
    task: str,
    argument: str,
    *,
    prompt: str | None = None,
    device: str = "auto",
    dtype: str = "auto",
    temperature: float | None = None,
    max_input_tokens: int | None = None,
    max_new_tokens: int | None = None,
    batch_size: int = 32,
) -> ModelPartner:
    """A partner by what follows `model:`.

    Args:
        task: Task id.
        argument: Folder, or repository on the Hub, also as NAME@REVISION.
        prompt: As in `ModelPartner`.
        device: `auto` is a GPU where there is one.
        dtype: As in `trainers.load.load_policy`.
        temperature: As in `ModelPartner`.
        max_input_tokens: As in `ModelPartner`.
        max_new_tokens: As in `ModelPartner`.
        batch_size: As in `ModelPartner`.

    Raises:
        ValueError: As in `ModelPartner`.
        FileNotFoundError: There is no such folder, repository or revision.
    """
    found = find_policy(argument)
    config = AutoConfig.from_pretrained(found.folder)
    kinds: Mapping[bool, Any] = {True: AutoModelForSeq2SeqLM, False: AutoModelForCausalLM}
    model = load_model(found.folder, pick_device(device), dtype, kinds[bool(config.is_encoder_decoder)])
    name = found.name if Path(argument).is_dir() else argument.partition("@")[0]
    return ModelPartner(
        task,
        model,
        AutoTokenizer.from_pretrained(found.folder),
        name=name,
        revision=found.revision,
        prompt=prompt,
        temperature=temperature,
        max_input_tokens=max_input_tokens,
        max_new_tokens=max_new_tokens,
        batch_size=batch_size,
    )
