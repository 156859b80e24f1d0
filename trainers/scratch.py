"""Models and tokenizers made from nothing, for where no hub is reachable and for tests: GPT-2's architecture."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple, cast

import torch
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import GPT2Config, GPT2LMHeadModel, PreTrainedTokenizerFast

from env_servers.tasks import unknown
from env_servers.trajectory import Trajectory

PAD, END = "<|pad|>", "<|endoftext|>"


class Size(NamedTuple):
    """A shape of GPT-2 and the standard deviation of its first weights."""

    layers: int
    heads: int
    width: int
    init_std: float


# `small` is the released GPT-2 (small), which the paper fine-tunes for Maze. Its standard deviation, 0.02, is meant
# for its width: so narrow a model as `tiny` starts almost blind with it and needs several times the steps.
SIZES: Mapping[str, Size] = {"tiny": Size(2, 2, 64, 0.1), "small": Size(12, 12, 768, 0.02)}


# What merges stay within: a newline; a phrase, of words of two letters and more; a letter, digit or other sign alone,
# with the space before it. So a small model reads Maze's sentences in few tokens, and Wordle's words letter by letter.
PIECES = r"\n|(?: ?[^\W\d_]{2,})+| ?[^\W\d_]| ?\d| ?[^\s\w]|[^\S\n]+|_"


def train_tokenizer(texts: Iterable[str], vocab_size: int = 1024) -> PreTrainedTokenizerFast:
    """A byte-level BPE tokenizer of the texts; it can write every text, not only these.

    The newline is a token of its own, so it alone ends an action in the plain rendering; other tokens are letters,
    digits and signs, or parts of phrases, see `PIECES`.

    Args:
        texts: What to learn the merges from. Order and repetition count, nothing else does.
        vocab_size: Most tokens; 256 bytes, end and pad are always there.

    Raises:
        ValueError: `vocab_size` is too small for the bytes.
    """
    if vocab_size < 258:
        raise ValueError(f"vocab_size is {vocab_size}; 256 bytes and two special tokens need at least 258")
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(PIECES), behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        special_tokens=[END, PAD],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    fast: Any = PreTrainedTokenizerFast
    return cast(
        PreTrainedTokenizerFast,
        fast(tokenizer_object=tokenizer, eos_token=END, pad_token=PAD, clean_up_tokenization_spaces=False),
    )


def episode_texts(trajectories: Iterable[Trajectory]) -> Iterable[str]:
    """All messages of the episodes, for `train_tokenizer`."""
    for trajectory in trajectories:
        for turn in trajectory.turns:
            yield turn.observation
            yield turn.action


def new_model(size: str, tokenizer: Any, max_length: int = 1024, *, seed: int = 0) -> GPT2LMHeadModel:
    """A GPT-2 with random weights. Global generators are as before when it returns.

    Args:
        size: `tiny` (2 layers of 64) or `small` (12 layers of 768).
        tokenizer: Gives the vocabulary and the end token.
        max_length: Number of positions.
        seed: The same seed gives the same weights.

    Raises:
        ValueError: No such size.
    """
    if size not in SIZES:
        raise ValueError(unknown("model size", size, SIZES))
    shape = SIZES[size]
    config = GPT2Config(
        vocab_size=len(tokenizer),
        n_positions=max_length,
        n_layer=shape.layers,
        n_head=shape.heads,
        n_embd=shape.width,
        initializer_range=shape.init_std,
        activation_function="gelu_pytorch_tanh",  # GPT-2's own function, as one kernel
        # Offline data of these tasks is passed over many times, but never so often that dropout pays.
        resid_pdrop=0.0,
        embd_pdrop=0.0,
        attn_pdrop=0.0,
        bos_token_id=tokenizer.eos_token_id,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return GPT2LMHeadModel(config)
