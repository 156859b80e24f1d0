"""Tokenizers, models and episodes small enough to make in a test."""

from __future__ import annotations

from typing import Any

from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

from env_servers.play import episode_starts, play
from env_servers.tasks import load_task, make_policy
from env_servers.trajectory import Trajectory, Turn
from trainers.scratch import episode_texts, train_tokenizer

# ChatML, as many chat models have it: a system role, an end-of-turn token, and a newline after that.
CHATML = (
    "{% for message in messages %}<|im_start|>{{ message.role }}\n{{ message.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


def maze_episodes(task: str, number: int, policy: str = "behavior") -> list[Trajectory]:
    """Training episodes of a scripted policy."""
    starts = episode_starts(task, "train", range(number))
    return [played.trajectory for played in play(task, make_policy(task, policy), starts)]


def episode(task: str, turns: list[tuple[str, str, float]], **changes: Any) -> Trajectory:
    """An episode written by hand; it ends truncated after the given turns unless `changes` say otherwise."""
    values: dict[str, Any] = {
        "task": task,
        "task_version": load_task(task).spec.version,
        "env_kwargs": {},
        "split": "train",
        "index": 0,
        "seed": 0,
        "turns": tuple(Turn(*turn) for turn in turns),
        "final_observation": "the end",
        "terminated": False,
        "truncated": True,
        "end_reason": "turn_limit",
        "success": False,
        "num_invalid": 0,
        "behavior_policy": "hand",
    }
    return Trajectory(**{**values, **changes})


def plain_tokenizer() -> PreTrainedTokenizerFast:
    """Byte-level BPE that knows Maze's words."""
    return train_tokenizer(episode_texts(maze_episodes("maze", 5)), 400)


def chat_tokenizer(template: str = CHATML) -> PreTrainedTokenizerFast:
    """The same with ChatML's tokens and a chat template."""
    tokenizer = plain_tokenizer()
    tokenizer.add_special_tokens({"additional_special_tokens": ["<|im_start|>", "<|im_end|>"]})
    tokenizer.chat_template = template
    return tokenizer


def spaced_tokenizer() -> PreTrainedTokenizerFast:
    """SentencePiece's way: a space before every text that is tokenised by itself."""
    tokenizer = Tokenizer(models.BPE(unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="always")
    tokenizer.decoder = decoders.Metaspace(prepend_scheme="always")
    texts = [*episode_texts(maze_episodes("maze", 5)), "Ünder isn't taller: s t a r e, you? \n"]
    tokenizer.train_from_iterator(texts, trainers.BpeTrainer(vocab_size=400, special_tokens=["<unk>", "</s>"]))
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, unk_token="<unk>", eos_token="</s>")
