"""The model card of a policy: what it is, what it learned from, how to measure it, where it ends."""

from __future__ import annotations

from typing import Any

import yaml

from env_servers.task import TaskSpec
from trainers.load import PolicyRecord

ALGORITHMS = {
    "bc": "behaviour cloning",
    "filtered_bc": "filtered behaviour cloning",
    "ilql": "implicit language Q-learning (ILQL)",
    "mc": "Monte Carlo returns",
}


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
    filtered = f", of which the filter `{record.filter}` kept a part" if record.filter else ""
    memory = {None: "the whole episode so far", 0: "the newest observation"}.get(
        record.memory, f"the last {record.memory} turns and the newest observation"
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
The loss is cross entropy on the agent's tokens and their terminator alone.

    {command}

| | |
|---|---|
{table}
| seed | {record.seed} |
| versions | {", ".join(f"{package} {number}" for package, number in record.versions.items())} |

## Evaluation

    lmrl eval --model {name} --task {record.task}

Scores depend on the sampling settings; a record of that command holds them, and the exact revision.

## Limits

The policy imitates its data, and is no better than what the data shows. It knows this task and its wording alone:
other text in the place of an observation gets an answer without meaning.
"""
