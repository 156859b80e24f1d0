"""What a language model reads when it speaks for the environment, and what its words mean.

Two ways, both of text alone. The *paper's* prompts are those that LMRL-Gym's own oracles and buyer were trained with
(arXiv 2311.18232, code of sections C.4 to C.6), so that such a checkpoint reads what it knows. The *chat* messages say
the same in words, for any model with a chat template and for endpoints of the chat completions protocol.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from env_servers.partners import Answer, Query

VERSION = "1"  # raised whenever a prompt below, or how an answer is read, changes
NO_ANSWER = "I do not know."


class Message(NamedTuple):
    """A chat message: `system`, `user` (the agent), or `assistant` (the partner)."""

    role: str
    content: str


class Voice(NamedTuple):
    """How a language model speaks for one task.

    Attributes:
        paper: The paper's prompt for a query.
        chat: The chat messages for it.
        read: The answer that a line of the model stands for.
        max_input_tokens: Longest prompt in the paper's code; of a longer one the end is kept.
        max_new_tokens: Longest answer in tokens.
        temperature: 0 takes the most likely token.
    """

    paper: Callable[[Query], str]
    chat: Callable[[Query], list[Message]]
    read: Callable[[str, Query], Answer]
    max_input_tokens: int
    max_new_tokens: int
    temperature: float


def voice_of(task: str) -> Voice:
    """The voice of a task.

    Raises:
        ValueError: The task has none.
    """
    if task not in VOICES:
        raise ValueError(
            f"no language model can be the partner of task {task!r}: its prompt is unknown; there are prompts for "
            f"{', '.join(VOICES)}"
        )
    return VOICES[task]


def read_line(text: str, prefix: str = "") -> str:
    """The first line of what a model wrote, without space around it and without the prefix that it may repeat."""
    line = text.strip().partition("\n")[0].strip()
    return line.removeprefix(prefix.strip()).strip() if prefix else line


def with_spoken_prefix(messages: list[Message], prefix: str) -> list[Message]:
    """The messages, asking in words for an answer that begins with a prefix: no protocol has a field for that."""
    if not prefix:
        return messages
    *before, last = messages
    return [*before, last._replace(content=f"{last.content}\n\n(Begin your answer with exactly: {prefix})")]


def _one_line(text: str) -> str:
    return " ".join(text.split())


# Twenty Questions and Guess My City: an oracle, which needs nothing but the hidden thing and the question ------------
def _object_prompt(query: Query) -> str:
    return (
        "Answer the question about the object truthfully.\n"
        f"object: ({', '.join(query.secret['word'])})\n"
        f"question: {_one_line(query.text)}\n"
        "answer (yes or no): "
    )


def _object_chat(query: Query) -> list[Message]:
    name, *others = query.secret["word"]
    also = f" (also called {', '.join(others)})" if others else ""
    return [
        Message(
            "system",
            f"You answer in a game of twenty questions. The hidden object is: {name}{also}. Somebody who does not know "
            "it asks a question about it. Answer truthfully with one word, Yes or No, and nothing else. Where both "
            "could be said, answer for the usual kind of that object.",
        ),
        Message("user", _one_line(query.text)),
    ]


def _yes_or_no(text: str, query: Query) -> Answer:
    """The paper's rule: what does not begin with yes is No."""
    line = read_line(text, query.prefix).lower()
    understood = line.startswith(("yes", "no"))
    return Answer("Yes." if line.startswith("yes") else "No.", understood)


def _without_accents(text: str) -> str:
    return "".join(sign for sign in unicodedata.normalize("NFKD", text) if not unicodedata.combining(sign))


def _city_prompt(query: Query) -> str:
    # The spaces before the later lines are the paper's code's, which its checkpoints have read.
    name = _without_accents(f"{query.secret['city']},{query.secret['country']}".lower())
    return (
        "Answer the question about the city truthfully.\n"
        f"    object: {name}\n"
        f"    question: {_one_line(query.text)}\n"
        "    answer: "
    )


def _city_chat(query: Query) -> list[Message]:
    return [
        Message(
            "system",
            f"You come from {query.secret['city']}, {query.secret['country']}. Somebody who does not know that tries "
            "to find out your city by asking. Answer truthfully in one short sentence; begin with Yes or No where the "
            "question can be answered so. Never write the name of the city or of its country.",
        ),
        Message("user", _one_line(query.text)),
    ]


def _sentence(text: str, query: Query) -> Answer:
    line = read_line(text, query.prefix)
    return Answer(line) if line else Answer(NO_ANSWER, understood=False)


# Car Dealer: a buyer, who remembers the conversation ----------------------------------------------------------------
def buyer_profile(secret: Mapping[str, Any]) -> str:
    """The paper's line on the buyer, such as `Personality: rude. Prefers a Ford SUV with sunroof. Budget: $10,000`."""
    return (
        f"Personality: {secret['personality']}. Prefers {secret['brand']} {secret['type']} with "
        f"{', '.join(secret['features'])}. Budget: ${secret['budget']:,}"
    )


def _buyer_prompt(query: Query) -> str:
    """The buyer's lines are the model's, so that the last line is the seller's, or the prefix."""
    said = [line for exchange in query.exchanges for line in (exchange.text, exchange.answer)]
    lines = ["Start", buyer_profile(query.secret), *map(_one_line, said), _one_line(query.text)]
    return "".join(f"{line}\n" for line in lines) + query.prefix


def _buyer_chat(query: Query) -> list[Message]:
    secret = query.secret
    messages = [
        Message(
            "system",
            f"You want to buy a car and talk with a dealer. You are {secret['personality']}, and it shows. You would "
            f"like {secret['brand']} {secret['type']} with {', '.join(secret['features'])}, and you cannot pay more "
            f"than ${secret['budget']:,}. Answer the dealer in one or two sentences on one line. Once you have "
            "decided, end that line with one of\n"
            "Output: Decision=Accept MSRP=$N Buy Price=$M\n"
            "Output: Decision=Reject MSRP=$N\n"
            "where N is the list price of the car that was offered and M is what you pay, both in dollars.",
        )
    ]
    for exchange in query.exchanges:
        messages.append(Message("user", _one_line(exchange.text)))
        messages.append(Message("assistant", _one_line(exchange.answer)))
    return [*messages, Message("user", _one_line(query.text))]


def _speech(text: str, query: Query) -> Answer:
    return Answer(read_line(text, query.prefix))


VOICES: Mapping[str, Voice] = {
    "twenty_questions": Voice(_object_prompt, _object_chat, _yes_or_no, 124, 4, 0.0),
    "guess_my_city": Voice(_city_prompt, _city_chat, _sentence, 124, 64, 0.0),
    "car_dealer": Voice(_buyer_prompt, _buyer_chat, _speech, 896, 127, 1.0),
}
