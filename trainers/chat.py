"""A tokenizer's chat template, message by message: what to add for each message to what is there already.

Templates are programs that render whole conversations. Acting and training need their pieces instead, so that ids
once written are never written again. The pieces are read off by rendering short conversations and comparing: the
text of a message is what the longer rendering has beyond the shorter one. A template where the shorter rendering
is not the beginning of the longer one (it rewrites what was said before) is refused.

The end-of-turn token, which the model itself must write to end its action, is the first added token after the
assistant's text. What the template puts behind it (often a newline) opens the next message of the environment.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from jinja2.exceptions import TemplateError

# Some templates write today's date into the system text; a fixed one keeps the prompts of training and evaluation
# the same on every day.
DATE = "01 Jan 2026"
USER, ASSISTANT, NEXT_USER = "qu1 once", "an1 once", "qu2 twice"  # stand-ins that no template has in its own text


def tokenize(tokenizer: Any, text: str, *, split_special_tokens: bool = False) -> tuple[int, ...]:
    """Token ids of a text by itself, with nothing added. `split_special_tokens` reads special tokens as text."""
    ids = tokenizer(text, add_special_tokens=False, split_special_tokens=split_special_tokens, verbose=False)
    return tuple(ids["input_ids"])


def decode(tokenizer: Any, token_ids: Sequence[int], *, skip_special_tokens: bool = False) -> str:
    """The text of token ids, exactly as they spell it."""
    text: str = tokenizer.decode(
        list(token_ids), skip_special_tokens=skip_special_tokens, clean_up_tokenization_spaces=False
    )
    return text


def refuse_if_different(tokenizer: Any, expected: str, got: str) -> None:
    """Raise where the ids of pieces in a row do not spell the joint text, showing the first difference.

    Raises:
        ValueError: The texts differ.
    """
    if expected == got:
        return
    pairs = enumerate(zip(expected, got, strict=False))
    place = next((n for n, (a, b) in pairs if a != b), min(len(expected), len(got)))
    around = slice(max(0, place - 12), place + 12)
    raise ValueError(
        f"tokenizer {tokenizer.name_or_path!r} cannot be used: messages are tokenised one by one, and their ids in a "
        f"row must spell the joint text. From character {place} on, {expected[around]!r} came back as "
        f"{got[around]!r}. Tokenizers that put a space before every piece (SentencePiece with a prefix), lower "
        "letters or lack characters do this; use a byte-level one, such as GPT-2's"
    )


class ChatPieces:
    """The pieces of a chat template.

    Args:
        tokenizer: A tokenizer with a chat template.
        instructions: System text; where the template takes none, it goes to the head of the first message.

    Raises:
        ValueError: There is no template, it rewrites earlier messages, or it puts no end-of-turn token after the
            assistant's text.
    """

    def __init__(self, tokenizer: Any, instructions: str) -> None:
        self._tokenizer, self._instructions = tokenizer, instructions
        if not tokenizer.chat_template:
            raise self._refusal("has no chat template; use the plain rendering, or a chat model")
        self._system = self._takes_system()
        self._opening = self._render(USER)
        after = self._beyond(self._render(USER, ASSISTANT, NEXT_USER), self._opening)
        lead, found, rest = after.partition(ASSISTANT)
        if not found:
            raise self._refusal(f"does not repeat the assistant's text: after {ASSISTANT!r} it has {after!r}")
        self.end = self._end_of_turn(rest)
        self._lead = lead
        self._before_next = self._opening + lead + ASSISTANT + self.end
        self._next = self.later(NEXT_USER)
        whole = self._render(USER, ASSISTANT, NEXT_USER, "an2 more", "qu3 thrice")
        joined = self.first(USER) + self.action(ASSISTANT) + self._next
        joined += self.action("an2 more") + self.later("qu3 thrice")
        if whole != joined:
            raise self._refusal(f"renders a message differently further on: {whole!r} is not {joined!r}")

    def first(self, observation: str) -> str:
        """System text, first observation, and the header that the model's answer follows."""
        return self._opening if observation == USER else self._render(observation)

    def later(self, observation: str) -> str:
        """What comes between an action's end-of-turn token and the next action."""
        return self._beyond(self._render(USER, ASSISTANT, observation), self._before_next)

    def action(self, text: str) -> str:
        """The assistant's text and its end-of-turn token."""
        if not text.strip():  # some templates refuse or leave out an empty message; a policy may still say nothing
            return self._lead + self.end
        after = self._beyond(self._render(USER, text, NEXT_USER), self._opening)
        if not after.endswith(self.end + self._next):
            raise self._refusal(f"does not end the assistant's {text!r} with {self.end!r}: it has {after!r}")
        return after.removesuffix(self._next)

    def text_of(self, generated: str) -> str:
        """The action in what a model wrote; templates trim messages, so this does too."""
        return generated.strip()

    def _render(self, *texts: str) -> str:
        """The conversation user, assistant, user, ..., with the header of the assistant's next message."""
        first, *others = texts
        messages = [{"role": "system", "content": self._instructions}] if self._system else []
        head = "" if self._system else f"{self._instructions}\n\n"
        messages.append({"role": "user", "content": head + first})
        for number, text in enumerate(others):
            messages.append({"role": "user" if number % 2 else "assistant", "content": text})
        return self._apply(messages, add_generation_prompt=True)

    def _apply(self, messages: list[dict[str, str]], add_generation_prompt: bool) -> str:
        text: str = self._tokenizer.apply_chat_template(
            messages, tokenize=False, add_generation_prompt=add_generation_prompt, date_string=DATE
        )
        return text

    def _takes_system(self) -> bool:
        messages = [{"role": "system", "content": self._instructions}, {"role": "user", "content": USER}]
        try:
            text = self._apply(messages, add_generation_prompt=True)
        except (TemplateError, ValueError, TypeError):
            return False
        return self._instructions.strip() in text

    def _beyond(self, longer: str, shorter: str) -> str:
        if not longer.startswith(shorter):
            raise self._refusal(
                f"rewrites what was said before, so a policy would read other ids than it said: {shorter!r} is not "
                f"the beginning of {longer!r}"
            )
        return longer[len(shorter) :]

    def _end_of_turn(self, rest: str) -> str:
        """The text from the assistant's last word up to and including the first added token after it."""
        names = {str(token) for token in self._tokenizer.added_tokens_decoder.values()}
        ends = [rest.find(name) + len(name) for name in names if name in rest]
        end = rest[: min(ends)] if ends else ""
        messages = [{"role": "user", "content": USER}, {"role": "assistant", "content": ASSISTANT}]
        last = self._apply(messages, add_generation_prompt=False)
        if not end or ASSISTANT + end not in last:
            raise self._refusal(
                "puts no end-of-turn token of its own after the assistant's text, so a model could not end its "
                f"action: within a conversation {rest!r} follows, at its end {last.partition(ASSISTANT)[2]!r}"
            )
        return end

    def _refusal(self, why: str) -> ValueError:
        return ValueError(f"the chat template of tokenizer {self._tokenizer.name_or_path!r} cannot be used: it {why}")
