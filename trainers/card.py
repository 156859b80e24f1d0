"""The model card of a policy: what it is, what it learned from, how to measure it, where it ends."""

from __future__ import annotations

from typing import Any

import yaml

from env_servers.task import TaskSpec
from trainers.curves import CURVES_NAME
from trainers.load import PolicyRecord

ALGORITHMS = {
    "bc": "behaviour cloning",
    "filtered_bc": "filtered behaviour cloning",
    "ilql": "implicit language Q-learning (ILQL)",
    "mc": "Monte Carlo returns",
    "ppo": "multi-turn PPO on episodes that it played itself",
    "grpo": "GRPO on episodes that it played itself",
    "online_ilql": "online ILQL, from a dataset and from episodes that it played itself",
    "online_bc": "online filtered behaviour cloning, of episodes that it played itself",
}
ONLINE = ("ppo", "grpo", "online_bc")  # those that learn from their own episodes

VALUE_LOSS = (
    "The loss regresses the values of the agent's tokens, with a conservative term; the behaviour policy stays as it "
    "is. When acting, the next token is drawn from its logits plus `beta` times the values."
)
ONLINE_LOSS = (
    "In rounds it plays episodes of the train split and learns from them: the loss is clipped, and rewards are less a "
    "penalty for saying what the policy that it began as would not say."
)
ONLINE_BC_LOSS = (
    "In rounds it plays episodes of the train split, and imitates the best of them: the loss is cross entropy on the "
    "tokens that it sampled there."
)
ONLINE_LIMITS = "It has learned what its own episodes paid for, which need not be what people mean by playing well."
BC_LIMITS = "The policy imitates its data, and is no better than what the data shows."
VALUE_LIMITS = (
    "The values are estimates from the data alone: where its episodes show no better way, the policy knows none, and "
    "a large `beta` trusts the estimates where they are wrong, too."
)


def render_card(record: PolicyRecord, spec: TaskSpec, name: str, command: str) -> str:
    """The README.md of a policy's repository.

    Args:
        record: What the policy is.
        spec: Its task.
        name: Repository id, or the folder's name.
        command: The command that trained it.
    """
    source, revision = record.dataset["source"], record.dataset["revision"]
    on_hub = revision is not None
    front: dict[str, Any] = {
        "library_name": "transformers",
        "pipeline_tag": "text-generation",
        "tags": ["lmrl", "lmrl-gym", "multi-turn", "reinforcement-learning"],
    }
    if on_hub:
        front["datasets"] = [source]
    if record.base_model is not None and record.base_model["revision"] is not None:
        front["base_model"] = record.base_model["source"]
    base = "random weights" if record.base_model is None else f"`{record.base_model['source']}`"
    data = f"`{source}` at revision `{revision}`" if on_hub else f"a local dataset, `{source}`"
    if record.algorithm in ONLINE:
        data = f"its own episodes{f', beside {data}' if source is not None else ''}"
    if record.algorithm == "online_ilql":
        data += ", and on its own episodes"
    filtered = f", of which the filter `{record.filter}` kept a part" if record.filter else ""
    memory = {None: "the whole episode so far", 0: "the newest observation"}.get(
        record.memory, f"the last {record.memory} turns and the newest observation"
    )
    loss = VALUE_LOSS if record.kind == "values" else "The loss is cross entropy on the agent's tokens alone."
    limits = VALUE_LIMITS if record.kind == "values" else BC_LIMITS
    if record.algorithm in ONLINE:
        loss = ONLINE_BC_LOSS if record.algorithm == "online_bc" else ONLINE_LOSS
        limits = ONLINE_LIMITS
    measured = "Not measured in training."
    if "best_return" in record.training:
        measured = (
            f"In training it played {record.training['eval_episodes']:g} episodes of the validation split every "
            f"{record.training['eval_steps']:g} steps; these are the weights of step {record.training['best_step']:g}, "
            f"which had the best mean return, {record.training['best_return']:.2f}. That is a choice among several, so "
            "expect a little less on the test episodes:"
        )
    table = "\n".join(f"| {label.replace('_', ' ')} | {value:g} |" for label, value in record.training.items())
    return f"""---
{yaml.safe_dump(front, sort_keys=False).strip()}
---

# {name}

A language model that plays **{spec.title}** of LMRL-Gym (arXiv 2311.18232), trained by {ALGORITHMS[record.algorithm]}.
{spec.summary}

It reads {memory}, in the *{record.rendering}* rendering, at most {record.max_length} tokens, and answers with one
action. `policy.json` holds these settings, so the commands below need none of them.

## Training

It began as {base} and was trained on {data}{filtered} (rules of the task: version {record.task_version}).
{loss}

    {command}

![Curves of the training]({CURVES_NAME})

| | |
|---|---|
{table}
| seed | {record.seed} |
| versions | {", ".join(f"{package} {number}" for package, number in record.versions.items())} |

## Evaluation

{measured}

    lmrl eval --model {name} --task {record.task}

Scores depend on the sampling settings; a record of that command holds them, and the exact revision.

## Limits

{limits} It knows this task and its wording alone:
other text in the place of an observation gets an answer without meaning.
"""
