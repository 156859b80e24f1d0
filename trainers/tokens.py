"""Text to tokens and back: what a policy reads, what it is trained on, and the masks.

The prompt for acting and the sequences for training are made by the same functions from the same pieces, one per
message, and never from a joint text: `encode` takes, for every turn, the very ids that the policy is given there.

Two renderings. *plain* (GPT-2 style): every message followed by one newline, without BOS or system text; the
newline ends an action. *chat*: the tokenizer's chat template, with the task's instructions as system text; the
template's end-of-turn token ends an action (see `trainers.chat`).

An episode becomes one or several sequences by one rule: walk the turns; while the next prompt extends the ids so
far, append; otherwise close the sequence and begin a new one. It covers the whole history (one sequence), the
newest observation only (one sequence per turn) and episodes that outgrow the context.

Rewards stand on the last token of their action, which is its terminator (LMRL-Gym, arXiv 2311.18232, section 3).
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any, Literal, NamedTuple, Protocol

import torch
from torch import Tensor

from env_servers.task import TaskSpec
from env_servers.tasks import unknown
from env_servers.trajectory import Trajectory, Turn
from trainers.chat import ChatPieces, decode, refuse_if_different, tokenize

RENDERINGS = ("plain", "chat")
IGNORED = -100  # label of a position without loss, as torch's cross entropy and the Hugging Face trainers have it
CACHED_MESSAGES = 1 << 16

Memory = int | None | Literal["task"]


class TokenSequence(NamedTuple):
    """A stretch of one episode as tokens. The lists have T items each.

    Attributes:
        input_ids: Token ids, beginning with the prompt of the first of `turns`.
        action_mask: 1 on the agent's tokens, terminator included; 0 elsewhere.
        rewards: A turn's reward on its action's last token; 0.0 elsewhere.
        turns: Numbers of the turns whose actions it holds; each turn of an episode is in exactly one sequence.
        terminated: It holds the episode's last turn and the task ended: a value estimate must not bootstrap.
        truncated: It holds the episode's last turn and the episode was cut: a value estimate must bootstrap.
        final_observation_ids: Where truncated, the prompt that the policy would have been given next; None if that is
            not known: the episode has no final observation, or only one of the task's `closing_texts`.
    """

    input_ids: list[int]
    action_mask: list[int]
    rewards: list[float]
    turns: list[int]
    terminated: bool = False
    truncated: bool = False
    final_observation_ids: list[int] | None = None


class _Pieces(Protocol):
    """A rendering, message by message. `first` opens a prompt, `later` follows an action."""

    def first(self, observation: str) -> str: ...
    def later(self, observation: str) -> str: ...
    def action(self, text: str) -> str: ...
    def text_of(self, generated: str) -> str: ...


class _PlainPieces:
    def first(self, observation: str) -> str:
        return observation + "\n"

    later = first
    action = first

    def text_of(self, generated: str) -> str:
        return generated.partition("\n")[0]


class Renderer:
    """How a policy reads an episode: tokenizer, rendering, memory and lengths in one object.

    Its attributes are not to be changed: pieces are cached.

    Args:
        tokenizer: A Hugging Face tokenizer whose pieces join, see `check_tokenizer`.
        spec: The task's constants.
        rendering: `plain` or `chat`.
        memory: How much of the past a prompt holds: None is all, 0 the newest observation, k the last k turns;
            `task` is what the task says.
        max_length: Most tokens of prompt and action together.
        action_room: Tokens of `max_length` that a prompt leaves free for the action. By default what the task says
            for the plain rendering, and twice that for chat, whose tokenizers and end-of-turn tokens may need more.

    Raises:
        ValueError: An argument has a value it does not take, or the tokenizer or its template cannot be used.
    """

    def __init__(
        self,
        tokenizer: Any,
        spec: TaskSpec,
        rendering: str = "plain",
        *,
        memory: Memory = "task",
        max_length: int = 1024,
        action_room: int | None = None,
    ) -> None:
        if rendering not in RENDERINGS:
            raise ValueError(unknown("rendering", rendering, RENDERINGS))
        self.tokenizer, self.spec, self.rendering = tokenizer, spec, rendering
        self.memory = spec.memory if memory == "task" else memory
        if self.memory is not None and self.memory < 0:
            raise ValueError(f"memory is {memory}; allowed are None (all turns), 0 (newest observation) and up")
        default_room = spec.max_action_tokens * (2 if rendering == "chat" else 1)
        self.action_room = default_room if action_room is None else action_room
        self.max_length = max_length
        if not 0 < self.action_room < max_length:
            raise ValueError(
                f"max_length is {max_length} tokens and {self.action_room} of them are kept for the action; "
                "a prompt needs at least one. Raise max_length or lower action_room"
            )
        self._pieces: _Pieces = ChatPieces(tokenizer, spec.instructions) if rendering == "chat" else _PlainPieces()
        # Tasks repeat themselves (Maze has 26 observations and 4 actions), and tokenising is most of the work.
        self._first = functools.lru_cache(CACHED_MESSAGES)(lambda text: self._tokenize(self._pieces.first(text)))
        self._later = functools.lru_cache(CACHED_MESSAGES)(lambda text: self._tokenize(self._pieces.later(text)))
        self._action = functools.lru_cache(CACHED_MESSAGES)(lambda text: self._tokenize(self._pieces.action(text)))
        check_tokenizer(self)

    def prompt_ids(self, history: Sequence[Turn], observation: str, *, action_length: int = 0) -> list[int]:
        """Token ids that the policy is given to act on `observation`.

        Where they would not fit, the oldest whole turns are left out.

        Args:
            history: All finished turns of the episode.
            observation: The newest observation.
            action_length: Tokens of the action to come, where they are known and exceed `action_room`.

        Raises:
            ValueError: The newest observation alone does not fit.
        """
        start = 0 if self.memory is None else max(0, len(history) - self.memory)
        window = history[start:]
        observations = [turn.observation for turn in window] + [observation]
        tails = [
            (*self._action(turn.action), *self._later(after))
            for turn, after in zip(window, observations[1:], strict=True)
        ]
        room = self.max_length - max(self.action_room, action_length)
        length = sum(len(tail) for tail in tails)
        for number, text in enumerate(observations):
            head = self._first(text)
            if len(head) + length <= room:
                return [*head, *(token for tail in tails[number:] for token in tail)]
            length -= len(tails[number]) if number < len(tails) else 0
        raise ValueError(
            f"{self.spec.id}: the newest observation alone is {len(head)} tokens, and {room} fit (max_length "
            f"{self.max_length} less {self.max_length - room} for the action); raise max_length. It begins "
            f"{observation[:80]!r}"
        )

    def continued_ids(self, ids: Sequence[int], turns: int, observation: str) -> list[int] | None:
        """Like `prompt_ids`, but the past is kept as the ids that the policy was given and sampled itself.

        A text can be spelled by several rows of ids. A policy that learns from what it said has to read on from the
        very ids that it sampled, since those are what it is trained on.

        Args:
            ids: The last prompt and the action sampled on it. A terminator that it lacks is put behind it.
            turns: Number of finished turns.
            observation: The newest observation.

        Returns:
            The prompt, or None where it has to be made anew by `prompt_ids`: turns are to be left out of it.
        """
        if self.memory is not None and turns > self.memory:
            return None
        end = () if ids[-1] in self.stop_ids else self._end
        prompt = [*ids, *end, *self._later(observation)]
        return prompt if len(prompt) + self.action_room <= self.max_length else None

    def action_ids(self, text: str) -> list[int]:
        """Token ids of an action, its terminator included.

        Raises:
            ValueError: The text holds a newline and the rendering is plain, where a newline ends the action.
        """
        if self.rendering == "plain" and "\n" in text:
            raise ValueError(
                f"{self.spec.id}: the action {text!r} holds a newline, which ends an action in the plain rendering; "
                "leave the episode out, or use the chat rendering"
            )
        return list(self._action(text))

    def action_text(self, token_ids: Sequence[int]) -> str:
        """The action that generated token ids stand for, without its terminator."""
        return self._pieces.text_of(decode(self.tokenizer, token_ids, skip_special_tokens=True))

    @functools.cached_property
    def stop_ids(self) -> frozenset[int]:
        """Ids that end an action: all that hold a newline (plain), or the end-of-turn token (chat)."""
        return frozenset(self._end) if self.rendering == "chat" else newline_ids(self.tokenizer)

    @property
    def _end(self) -> tuple[int, ...]:
        """Ids of the terminator."""
        return self._action("a")[-1:] if self.rendering == "chat" else self._action("")

    def _tokenize(self, piece: str) -> tuple[int, ...]:
        # In a chat piece the template's special tokens are meant; in plain text their spelling is only text.
        return tokenize(self.tokenizer, piece, split_special_tokens=self.rendering == "plain")


def newline_ids(tokenizer: Any) -> frozenset[int]:
    """Ids of all tokens that hold a newline."""
    texts = tokenizer.batch_decode([[number] for number in range(len(tokenizer))], clean_up_tokenization_spaces=False)
    return frozenset(number for number, text in enumerate(texts) if "\n" in text)


def check_tokenizer(renderer: Renderer) -> None:
    """Refuse a tokenizer whose ids of single messages, put in a row, do not read like the whole text.

    Raises:
        ValueError: It adds spaces to every piece, changes letters, has no newline or the like; the message shows
            what was expected and what came back.
    """
    pieces, tokenizer = renderer._pieces, renderer.tokenizer
    texts = ("The goal is at 8, 6.", "move left", "There are walls: Ünder you?", "s t a r e", "It isn't 1 0.")
    rendered = [pieces.first(texts[0]), *_alternate(pieces, texts[1:])]
    ids = [token for piece in rendered for token in renderer._tokenize(piece)]
    refuse_if_different(tokenizer, "".join(rendered), decode(tokenizer, ids))
    end = renderer._tokenize(pieces.action(""))
    if renderer.rendering == "plain" and decode(tokenizer, end) != "\n":
        raise ValueError(
            f"tokenizer {tokenizer.name_or_path!r} cannot write a newline, which ends an action in the plain "
            f"rendering: it came back as {decode(tokenizer, end)!r}. Use another tokenizer or the chat rendering"
        )


def _alternate(pieces: _Pieces, texts: Sequence[str]) -> list[str]:
    return [pieces.later(text) if number % 2 else pieces.action(text) for number, text in enumerate(texts)]


def encode(trajectory: Trajectory, renderer: Renderer) -> list[TokenSequence]:
    """An episode as token sequences, by the rule at the head of this module.

    The ids before each action are exactly `renderer.prompt_ids` of that turn. (An action longer than the
    renderer's `action_room`, which its policy could not have said, makes its own prompt shorter.)

    Raises:
        ValueError: The episode is of another task, an action holds a newline in the plain rendering, or an
            observation and its action do not fit in `max_length` together.
    """
    if trajectory.task != renderer.spec.id:
        raise ValueError(
            f"{trajectory.episode_id} is of task {trajectory.task!r}, the renderer of {renderer.spec.id!r}; "
            "make a renderer with that task's spec"
        )
    turns, sequences = trajectory.turns, list[TokenSequence]()
    for number, turn in enumerate(turns):
        action = renderer.action_ids(turn.action)
        if len(action) >= renderer.max_length:
            raise ValueError(
                f"{trajectory.episode_id}: the action of turn {number} is {len(action)} tokens, and max_length is "
                f"{renderer.max_length}; raise max_length or leave the episode out"
            )
        prompt = renderer.prompt_ids(turns[:number], turn.observation, action_length=len(action))
        if not sequences or prompt[: len(sequences[-1].input_ids)] != sequences[-1].input_ids:
            sequences.append(TokenSequence([], [], [], []))
        ids, mask, rewards, held = sequences[-1][:4]
        added = prompt[len(ids) :]
        ids += added + action
        mask += [0] * len(added) + [1] * len(action)
        rewards += [0.0] * (len(added) + len(action) - 1) + [turn.reward]
        held.append(number)
    final = None
    said = trajectory.final_observation
    if trajectory.truncated and said is not None and said not in renderer.spec.closing_texts:
        final = renderer.prompt_ids(turns, said)
    sequences[-1] = sequences[-1]._replace(
        terminated=trajectory.terminated, truncated=trajectory.truncated, final_observation_ids=final
    )
    return sequences


def labels(sequence: TokenSequence) -> list[int]:
    """The ids where the agent speaks, -100 elsewhere: T labels, not shifted, as Hugging Face models take them."""
    pairs = zip(sequence.input_ids, sequence.action_mask, strict=True)
    return [token if acts else IGNORED for token, acts in pairs]


def collate(sequences: Sequence[TokenSequence], pad_token_id: int) -> dict[str, Tensor]:
    """Sequences as one batch, padded on the right.

    Returns:
        `input_ids` (long), `attention_mask` (long; from the lengths, so a pad id inside a text still counts),
        `action_mask` (long) and `rewards` (float32), each of shape (B, T).

    Raises:
        ValueError: There is no sequence.
    """
    if not sequences:
        raise ValueError("got no sequences to make a batch of; give at least one")
    lengths = torch.tensor([len(sequence.input_ids) for sequence in sequences])
    longest = int(lengths.max())

    def padded(rows: Sequence[list[Any]], value: float, dtype: torch.dtype) -> Tensor:
        return torch.tensor([row + [value] * (longest - len(row)) for row in rows], dtype=dtype)

    return {
        "input_ids": padded([sequence.input_ids for sequence in sequences], pad_token_id, torch.long),
        "attention_mask": (torch.arange(longest)[None] < lengths[:, None]).long(),
        "action_mask": padded([sequence.action_mask for sequence in sequences], 0, torch.long),
        "rewards": padded([sequence.rewards for sequence in sequences], 0.0, torch.float32),
    }
