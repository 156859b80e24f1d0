"""Rounds of episodes played by the policy that learns: what all online methods share.

A round has a fixed number of episodes, the next ones of the task's train split. Each is known by its place there, and
its seed gives all of its random numbers, so it does not matter how many processes play or whether the round was
interrupted. A finished episode goes into the round's journal, with the very ids that were sampled, before anything is
learned of it; a run that was stopped plays only those that its journal lacks.
"""

from __future__ import annotations

import random
import time
import weakref
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from env_servers.play import Failure, Played, Start, episode_starts, play
from env_servers.policy import Action, Context
from env_servers.scores import summarize
from env_servers.task import Env
from env_servers.tasks import make_env
from hub_datasets.journal import encode_line, open_to_append, read_lines
from hub_datasets.manifest import write_text
from hub_datasets.rows import from_row, to_row
from trainers.policy import LanguageModelPolicy
from trainers.rollouts import RolloutPolicy

OUT_OF_TOKENS = "token_budget"  # end reason of an episode that was cut because it had said too much
EnvMaker = Callable[[str, Mapping[str, Any]], Env]


class Rollouts(NamedTuple):
    """What is played in a round.

    Attributes:
        task: Task id.
        episodes: Number of episodes of a round, of all processes together.
        slots: Episodes at the same time, in one process.
        env_kwargs: Options of the environment.
        attempts: How often an episode is begun that something outside the task keeps from being finished.
        seed: Gives the policy other random numbers on the same episodes.
        process: Number of this process; it plays every `processes`-th episode of the round.
        processes: How many there are.
    """

    task: str
    episodes: int
    slots: int = 64
    env_kwargs: Mapping[str, Any] | None = None
    attempts: int = 3
    seed: int = 0
    process: int = 0
    processes: int = 1

    def starts(self, number: int) -> list[Start]:
        """This process's episodes of a round."""
        first = number * self.episodes
        indices = range(first + self.process, first + self.episodes, self.processes)
        return list(episode_starts(self.task, "train", indices, self.env_kwargs))


class OnlinePolicy(RolloutPolicy):
    """A language model that reads on from the ids that it sampled, for episodes that all have seeds of their own.

    Args:
        max_episode_tokens: Most ids sampled in an episode: it is cut before an action that might exceed them. None is
            no limit.
    """

    def __init__(self, *args: Any, max_episode_tokens: int | None = None, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._max_episode_tokens = max_episode_tokens
        self._sampled: weakref.WeakKeyDictionary[random.Random, int] = weakref.WeakKeyDictionary()

    def act(self, contexts: Sequence[Context]) -> list[Action]:
        """As in `LanguageModelPolicy`."""
        actions = super().act(contexts)
        for context, action in zip(contexts, actions, strict=True):
            self._sampled[context.rng] = self._sampled.get(context.rng, 0) + len(action.token_ids or ())
        return actions

    def stop(self, context: Context) -> str | None:
        """Why to cut an episode before its next action; None to go on."""
        limit = self._max_episode_tokens
        spent = limit is not None and self._sampled[context.rng] + self.max_new_tokens > limit
        return OUT_OF_TOKENS if spent else None

    def final_prompt(self, played: Played) -> list[int] | None:
        """What it would have been given after the last action; None where the environment said nothing then."""
        said, last = played.trajectory.final_observation, played.actions[-1]
        if said is None or last.prompt_ids is None or last.token_ids is None:
            return None
        turns = played.trajectory.turns
        prompt = self.renderer.continued_ids((*last.prompt_ids, *last.token_ids), len(turns), said)
        return self.renderer.prompt_ids(turns, said) if prompt is None else prompt

    def _uniforms(self, rng: random.Random) -> list[float]:
        return LanguageModelPolicy._uniforms(self, rng)  # by the episode's own generator, not by its place


class Round(NamedTuple):
    """What a process has of a round.

    Attributes:
        played: Its finished episodes, by their place in the split.
        failed: How many something outside the task kept from being finished in all attempts.
        resumed: How many were in the journal.
        seconds: Time to play the others.
        error: What kept one of the failed ones from being finished.
    """

    played: list[Played]
    failed: int
    resumed: int
    seconds: float
    error: str | None = None


def collect(
    rollouts: Rollouts, policy: OnlinePolicy, number: int, journal: Path, env_maker: EnvMaker = make_env
) -> Round:
    """Play a process's part of a round, or what its journal lacks of it.

    An episode that fails outside the task, as on a server that is gone, is begun anew, and left out in the end.

    Args:
        rollouts: What to play.
        policy: Plays; its name goes into the records.
        number: Of the round, from 0.
        journal: File of this round and process; made, or gone on with.
        env_maker: Builds environments from task id and options: here, or those of a server.

    Raises:
        ValueError: The journal is damaged, or of other episodes.
    """
    starts, began = rollouts.starts(number), time.monotonic()
    done = read_journal(journal)
    todo = [start for start in starts if start.index not in done]
    if not done.keys() <= {start.index for start in starts}:
        raise ValueError(f"{journal} holds episodes that are not of round {number}; delete it to have them played")
    resumed = len(done)
    journal.parent.mkdir(parents=True, exist_ok=True)
    end = max((line.end for line in read_lines(journal)), default=0)
    file, _ = open_to_append(journal, end)
    failures: list[Failure] = []
    with file:
        for _ in range(rollouts.attempts):
            failures = []
            for played in play(
                rollouts.task,
                policy,
                todo,
                slots=rollouts.slots,
                run_seed=rollouts.seed,
                stop=policy.stop,
                on_failure=failures.append,
                env_maker=env_maker,
            ):
                file.write(encode_line(to_record(played)))
                file.flush()
                done[played.trajectory.index] = played
            todo = [failure.start for failure in failures]
            if not todo:
                break
    error = str(failures[0].error) if failures else None
    return Round([done[index] for index in sorted(done)], len(failures), resumed, time.monotonic() - began, error)


def read_journal(path: Path) -> dict[int, Played]:
    """The finished episodes in a journal, by their place in the split; none where there is no file.

    Raises:
        ValueError: It is damaged before its end.
    """
    episodes = (from_record(line.record) for line in read_lines(path))
    return {played.trajectory.index: played for played in episodes}


def to_record(played: Played) -> dict[str, Any]:
    """An episode with its sampled ids as a JSON value. Of a prompt that reads on, only what is new is kept."""
    turns, before = [], list[int]()
    for action in played.actions:
        prompt = list(action.prompt_ids or ())
        shared = len(before) if prompt[: len(before)] == before else 0
        before = [*prompt, *(action.token_ids or ())]
        turns.append(
            {
                "shared": shared,
                "prompt_ids": prompt[shared:],
                "token_ids": list(action.token_ids or ()),
                "logprobs": list(action.logprobs or ()),
                "finish_reason": action.finish_reason,
                "info": action.info,
            }
        )
    return {"episode": to_row(played.trajectory), "turns": turns, "legal": list(played.legal)}


def from_record(record: Mapping[str, Any]) -> Played:
    """The inverse of `to_record`."""
    trajectory, actions, before = from_row(record["episode"]), list[Action](), list[int]()
    for turn, kept in zip(trajectory.turns, record["turns"], strict=True):
        prompt = [*before[: kept["shared"]], *kept["prompt_ids"]]
        ids = kept["token_ids"]
        before = [*prompt, *ids]
        actions.append(
            Action(turn.action, tuple(prompt), tuple(ids), tuple(kept["logprobs"]), kept["finish_reason"], kept["info"])
        )
    return Played(trajectory, tuple(actions), tuple(record["legal"]))


class EpisodeNumbers(NamedTuple):
    """The numbers of one episode, small enough to be told to all processes; a `scores.Episode`.

    Attributes:
        place: Of the episode in its split.
        episode_return: Undiscounted.
        success: The task's own predicate.
        num_turns: Number of actions.
        num_invalid: How many of them were not understood or not allowed.
        tokens: Number of ids sampled.
        cut_actions: Actions that the budget of a turn cut.
        truncated: Whether the episode was cut.
    """

    place: int
    episode_return: float
    success: bool
    num_turns: int
    num_invalid: int
    tokens: int
    cut_actions: int
    truncated: bool


def numbers_of(played: Played) -> EpisodeNumbers:
    """The numbers of an episode."""
    episode = played.trajectory
    return EpisodeNumbers(
        place=episode.index,
        episode_return=episode.episode_return,
        success=episode.success,
        num_turns=episode.num_turns,
        num_invalid=episode.num_invalid,
        tokens=sum(len(action.token_ids or ()) for action in played.actions),
        cut_actions=sum(action.finish_reason == "length" for action in played.actions),
        truncated=episode.truncated,
    )


def round_metrics(numbers: Iterable[EpisodeNumbers], failed: int, seconds: float) -> dict[str, float]:
    """What to log of a round, from the numbers of its episodes of all processes.

    Args:
        numbers: Of at least one episode.
        failed: Episodes that could not be finished.
        seconds: Time to play.

    Returns:
        `rollout/return`, its standard deviation `rollout/return_std`, `rollout/success`, `rollout/length` (actions),
        `rollout/invalid` and `rollout/cut_actions` (shares of the actions), `rollout/truncated` (a share of the
        episodes), `rollout/tokens` (sampled ids), `rollout/env_steps` (actions), `rollout/failed`, and
        `rollout/seconds`.
    """
    episodes = list(numbers)
    summary, turns = summarize(episodes), sum(episode.num_turns for episode in episodes)
    return {
        "rollout/return": summary.mean_return,
        "rollout/return_std": summary.std_return if len(episodes) > 1 else 0.0,
        "rollout/success": summary.success_rate,
        "rollout/length": summary.mean_length,
        "rollout/invalid": summary.invalid_rate,
        "rollout/cut_actions": sum(episode.cut_actions for episode in episodes) / turns,
        "rollout/truncated": sum(episode.truncated for episode in episodes) / len(episodes),
        "rollout/tokens": float(sum(episode.tokens for episode in episodes)),
        "rollout/env_steps": float(turns),
        "rollout/failed": float(failed),
        "rollout/seconds": seconds,
    }


def write_transcripts(path: Path, played: Sequence[Played]) -> None:
    """Write episodes for people to read: what was said, paid, cut and not understood."""
    parts = []
    for episode, actions, legal in played:
        lines = [f"{episode.episode_id}: return {episode.episode_return:g}, {episode.end_reason}"]
        for turn, action, allowed in zip(episode.turns, actions, legal, strict=True):
            notes = [f"{turn.reward:+g}"]
            notes += ["cut after so many tokens"] if action.finish_reason == "length" else []
            notes += [] if allowed else ["invalid"]
            lines += [f"  env:   {turn.observation}", f"  agent: {turn.action}  ({', '.join(notes)})"]
        lines += [] if episode.final_observation is None else [f"  env:   {episode.final_observation}"]
        parts.append("\n".join(lines))
    path.parent.mkdir(parents=True, exist_ok=True)
    write_text(path, "\n\n".join(parts) + "\n")
