"""What is learned from is what the agent said: ids under the masks, decoded, on a transcript with all that is odd.

An action that the budget cut, terminators of two ids (a template that puts a space before its end-of-turn token), and
a tokenizer that pads with its end token: a mask made by looking for pads or ends would be wrong in each.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch
from tiny_models import chat_tokenizer, episode, plain_tokenizer

from env_servers.play import Played
from env_servers.policy import Action
from env_servers.tasks import load_task
from trainers.online import OUT_OF_TOKENS, OnlinePolicy
from trainers.ppo_rows import RoundRows, rows_of
from trainers.rollouts import sampled_sequences
from trainers.scratch import new_model
from trainers.sequences import build_dataset, row_collator
from trainers.tokens import IGNORED, Renderer

torch.set_num_threads(1)
SPACED_END = (
    "{% for message in messages %}<|im_start|>{{ message.role }}\n{% if message.role == 'assistant' %}"
    "{{ message.content | trim }} <|im_end|>\n{% else %}{{ message.content }}<|im_end|>\n{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
SAID = ["move up", "move left", "move down", ""]
CUT = 1  # number of the action that the budget cut, without its terminator


def chat() -> tuple[Any, str, str]:
    tokenizer = chat_tokenizer(SPACED_END)
    tokenizer.eos_token = tokenizer.pad_token = "<|im_end|>"
    return tokenizer, "chat", " <|im_end|>"


def plain() -> tuple[Any, str, str]:
    tokenizer = plain_tokenizer()
    tokenizer.pad_token = tokenizer.eos_token
    return tokenizer, "plain", "\n"


def transcript(policy: OnlinePolicy) -> Played:
    """Four actions as a policy would have sampled them, in an episode that a budget of ours cut."""
    renderer, turns, actions, before = policy.renderer, [], list[Action](), list[int]()
    for number, text in enumerate(SAID):
        observation = f"There is a wall {number}."
        prompt = renderer.continued_ids(before, number, observation) if before else None
        prompt = prompt or renderer.prompt_ids([], observation)
        ids = renderer.tokenizer.encode(text, add_special_tokens=False) if number == CUT else renderer.action_ids(text)
        before = [*prompt, *ids]
        finish = "length" if number == CUT else "stop"
        actions.append(Action(text, tuple(prompt), tuple(ids), (-0.5,) * len(ids), finish))
        turns.append((observation, text, -1.0))
    return Played(episode(renderer.spec.id, turns, end_reason=OUT_OF_TOKENS), tuple(actions), (True,) * len(SAID))


@pytest.mark.parametrize("task", ["maze", "maze_po"])
@pytest.mark.parametrize("kind", [chat, plain], ids=["chat", "plain"])
def test_ids_under_the_masks_are_the_agent_s_words_and_their_ends(kind: Any, task: str) -> None:
    """As rows of single turns (maze) and as one row (maze_po)."""
    tokenizer, rendering, end = kind()
    spec = load_task(task).spec
    policy = OnlinePolicy(new_model("tiny", tokenizer, 1024, seed=0), tokenizer, spec, name="p", rendering=rendering)
    played = transcript(policy)
    assert len(policy.renderer.action_ids("")) == (2 if rendering == "chat" else 1)
    assert tokenizer.pad_token_id == tokenizer.eos_token_id
    assert all(policy.renderer.action_text(action.token_ids or ()) == action.text for action in played.actions)
    sampled = [text + (end if number != CUT else "") for number, text in enumerate(SAID)]
    written = [text + end for text in SAID]
    stretches = len(SAID) if task == "maze" else 1

    sequences = sampled_sequences(played)
    assert len(sequences) == stretches
    ids = [token for one in sequences for token, acts in zip(one.input_ids, one.action_mask, strict=True) if acts]
    assert tokenizer.decode(ids) == "".join(sampled)

    rows = rows_of(played, policy)
    tokens = [[row.input_ids[place + 1] for place in row.places] for row in rows]
    assert tokenizer.decode([token for of_row in tokens for token in of_row]) == "".join(sampled)
    ends = [place for of_row in rows for place in range(len(of_row.places)) if of_row.ends[place]]
    assert len(ends) == len(SAID), "each action has one last token, a cut one, too"
    numbers = torch.zeros(sum(map(len, tokens)))
    batch = RoundRows(rows, {0: len(rows)}, numbers, numbers, numbers, numbers).batch(
        range(len(rows)), pad_id=tokenizer.pad_token_id
    )
    assert batch["tokens"].tolist() == [token for of_row in tokens for token in of_row], "padding changes nothing"
    learned = batch["input_ids"][batch["rows"], batch["places"] + 1]
    assert tokenizer.decode(learned.tolist()) == "".join(sampled)

    offline = build_dataset([played.trajectory], Renderer(tokenizer, spec, rendering))
    assert len(offline) == stretches
    padded = row_collator(tokenizer)(list(offline))
    labels = padded["labels"][padded["labels"] != IGNORED]
    assert tokenizer.decode(labels.tolist()) == "".join(written)
    assert (padded["input_ids"][padded["labels"] != IGNORED] == labels).all()
    assert not padded["attention_mask"][padded["labels"] == IGNORED].all() or stretches == 1
