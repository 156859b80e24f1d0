"""Episodes for TRL's `GRPOTrainer`: a function for its `rollout_func`, and a class for its `environment_factory`.

`rollout_func` is the seam for tasks whose actions are plain text: the whole episode is played here, and the trainer is
given its ids with a mask of what the agent said. `environment_factory` offers an episode as a tool that a model with a
tool-calling template calls. Either plays in this process, or on servers by another `env_maker`.

TRL gives both a row of its dataset, the same row to all episodes of a group, so the row names the episode and a group
plays one seed; `episode_rows` makes such rows. A row of `rollout_func` has to become one sequence. A policy that sees
all of the past makes one of an episode, while one that sees the newest observation alone makes as many as there are
turns, none of which holds the ids of another: then a row gets one of them, drawn uniformly, and the whole's return; an
episode may fill several rows of its group.
"""

from __future__ import annotations

import random
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

from accelerate.utils import DistributedType

from env_servers.play import Failure, Played, Start, episode_starts, play
from env_servers.policy import Action, Context
from env_servers.seeding import hash_seed
from env_servers.task import Env, EpisodeError
from env_servers.tasks import load_task, make_env
from trainers.policy import LanguageModelPolicy, Sampling
from trainers.tokens import Memory

EnvMaker = Callable[[str, Mapping[str, Any]], Env]
OVER = "The episode is over."  # for a model that calls `act`
CUT = "completion_limit"  # end reason of an episode that outgrew `max_completion_length`
# Ways to sample that the loss of GRPO does not know of, and that `Sampling` has not; with the value that is none.
NOT_SAMPLED: Mapping[str, Any] = {"min_p": None, "repetition_penalty": 1.0, "generation_kwargs": None}


class SampledSequence(NamedTuple):
    """A stretch of an episode as ids, exactly as the policy was given and sampled them. The lists have T items each.

    Attributes:
        input_ids: The prompt of the first of `turns`, its action, what came next, the next action, and so on.
        action_mask: 1 on sampled ids, terminators included; 0 elsewhere.
        logprobs: Log-probabilities that ids were sampled with; 0.0 elsewhere.
        rewards: A turn's reward on its action's last id; 0.0 elsewhere.
        turns: Numbers of the turns whose actions it holds.
    """

    input_ids: list[int]
    action_mask: list[int]
    logprobs: list[float]
    rewards: list[float]
    turns: list[int]


def sampled_sequences(played: Played) -> list[SampledSequence]:
    """An episode as the fewest sequences that hold each action once, after the very prompt that it was sampled on.

    Raises:
        ValueError: Its policy told no ids: it is no language model, or chose among whole actions.
    """
    sequences: list[SampledSequence] = []
    for number, (action, turn) in enumerate(zip(played.actions, played.trajectory.turns, strict=True)):
        if action.prompt_ids is None or action.token_ids is None or action.logprobs is None:
            raise ValueError(
                f"{played.trajectory.episode_id}: turn {number} has no sampled ids and log-probabilities; play with a "
                "language model that writes its actions (without rerank)"
            )
        prompt = list(action.prompt_ids)
        if not sequences or prompt[: len(sequences[-1].input_ids)] != sequences[-1].input_ids:
            sequences.append(SampledSequence([], [], [], [], []))
        ids, mask, logprobs, rewards, turns = sequences[-1]
        added = len(prompt) - len(ids)
        ids += [*prompt[len(ids) :], *action.token_ids]
        mask += [0] * added + [1] * len(action.token_ids)
        logprobs += [0.0] * added + list(action.logprobs)
        rewards += [0.0] * (added + len(action.token_ids) - 1) + [turn.reward]
        turns.append(number)
    return sequences


class _Said:
    """What a policy remembers of one episode: its generator, the ids so far, and how many were there at first."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.ids: list[int] = []
        self.start = 0


class Told(NamedTuple):
    """What reward functions are given of an episode, each as a keyword with one value per row.

    All are None for an episode that something outside the task kept from being finished in all attempts.

    Attributes:
        episode_return: Undiscounted sum of the rewards.
        turn_rewards: The rewards of all turns.
        token_rewards: The row's own turns' rewards, on the last id of each action; one number per id of the completion.
        success: The task's own predicate.
        terminated: False where the episode was cut.
        end_reason: Why it ended.
        num_turns: Number of actions.
        num_invalid: How many of them were not understood or not allowed.
        stretches: How many sequences the episode made, of which the row is one.
    """

    episode_return: float
    turn_rewards: list[float]
    token_rewards: list[float]
    success: bool
    terminated: bool
    end_reason: str
    num_turns: int
    num_invalid: int
    stretches: int


class RolloutPolicy(LanguageModelPolicy):
    """A language model that reads on from the ids that it sampled, in episodes of equal seeds that differ.

    `play` gives all episodes of a seed the same random numbers, and the past as text. Here each episode has numbers of
    its own, by its place in the round, and its past is kept as ids, which are never tokenised again. An episode is
    known by its generator, which is the same object throughout.

    Args:
        most_tokens: Most ids from the first action of a stretch to its last, see `stop`; None is no limit.
    """

    def __init__(self, *args: Any, most_tokens: int | None = None, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._most_tokens, self._seed, self._begun = most_tokens, 0, 0
        self._said: weakref.WeakKeyDictionary[random.Random, _Said] = weakref.WeakKeyDictionary()

    def begin(self, seed: int) -> None:
        """Begin a round: the n-th episode to act from here on draws from a generator seeded with (seed, n)."""
        self._seed, self._begun = seed, 0
        self._said.clear()
        self.forget()

    def act(self, contexts: Sequence[Context]) -> list[Action]:
        """As in `LanguageModelPolicy`."""
        for context in contexts:
            if context.rng not in self._said:
                self._said[context.rng] = _Said(hash_seed("rollout", self._seed, self._begun))
                self._begun += 1
        actions = super().act(contexts)
        for context, action in zip(contexts, actions, strict=True):
            said = self._said[context.rng]
            prompt, sampled = action.prompt_ids or (), action.token_ids or ()
            if not said.ids or list(prompt[: len(said.ids)]) != said.ids:
                said.start = len(prompt)
            said.ids = [*prompt, *sampled]
        return actions

    def stop(self, context: Context) -> str | None:
        """Why to cut an episode before its next action, which might not fit in `most_tokens`; None to go on."""
        said, prompt = self._said[context.rng], self._prompt_ids(context)
        goes_on = prompt[: len(said.ids)] == said.ids
        length = (len(prompt) - said.start if goes_on else 0) + self.max_new_tokens
        return CUT if self._most_tokens is not None and length > self._most_tokens else None

    def _prompt_ids(self, context: Context) -> list[int]:
        ids, turns = self._said[context.rng].ids, len(context.history)
        prompt = self.renderer.continued_ids(ids, turns, context.observation) if ids else None
        return super()._prompt_ids(context) if prompt is None else prompt

    def _uniforms(self, rng: random.Random) -> list[float]:
        return super()._uniforms(self._said[rng].rng)


def episode_rows(
    task: str, indices: Iterable[int], *, split: str = "train", conversational: bool = False
) -> list[dict[str, Any]]:
    """Rows of a dataset for `GRPOTrainer`, one per episode to be played by a group.

    Args:
        task: Task id.
        indices: Numbers of the episodes within the split.
        split: Which one; test episodes are for evaluation.
        conversational: For `environment_factory`: the prompt is the task's instructions, to which TRL adds what
            `reset` returns. Otherwise, for `rollout_func`, it is the episode's name, such as `wordle/train/17`.
    """
    told = [{"role": "user", "content": load_task(task).spec.instructions + "\n\n"}]
    rows = [(f"{task}/{split}/{index}", index) for index in indices]
    return [{"prompt": told if conversational else name, "split": split, "index": index} for name, index in rows]


def return_reward(completions: Sequence[Any], episode_return: Sequence[float | None], **_: Any) -> list[float | None]:
    """The reward function that goes with `rollout_func_for`: the episode's return, None where there is no episode."""
    return list(episode_return)


def rollout_func_for(
    task: str,
    *,
    env_kwargs: Mapping[str, Any] | None = None,
    env_maker: EnvMaker = make_env,
    rendering: str = "plain",
    memory: Memory = "task",
    max_length: int | None = None,
    max_new_tokens: int | None = None,
    batch_size: int = 64,
    slots: int | None = None,
    attempts: int = 3,
    rows_per_episode: int = 1,
) -> Callable[[list[Any], Any], dict[str, list[Any]]]:
    """A function for `GRPOTrainer(rollout_func=...)` that plays the episodes named by the prompts.

    The training model plays, as the trainer's configuration says (temperature, top_k, top_p), and an episode is cut
    before an action that might not fit in `max_completion_length`. What of it reward functions are given says `Told`;
    `return_reward` is one that fits. A row whose episode failed in all attempts has no part in the loss.

    Args:
        task: Task id.
        env_kwargs: Options of the environment; they take precedence over the test starts'.
        env_maker: Builds environments from task id and options: here, or those of a server.
        rendering: As in `trainers.tokens.Renderer`.
        memory: As there.
        max_length: As in `LanguageModelPolicy`.
        max_new_tokens: Most ids of an action, its terminator included; None is what the task says.
        batch_size: Most prompts in one call of the model.
        slots: Episodes at the same time; None is all.
        attempts: How often an episode is begun that something outside the task keeps from being finished.
        rows_per_episode: How many rows an episode fills, which have to be a divisor of the trainer's group: each gets
            another of its sequences, as long as there are others. More of them learn more of an episode.

    Raises:
        ValueError: `rows_per_episode` is not above 0, or when playing: does not divide the rows of an episode's name.
    """
    if rows_per_episode < 1:
        raise ValueError(f"rows_per_episode is {rows_per_episode}; an episode fills at least 1 row")
    step, rounds = -1, 0  # a run that is resumed draws what it would have drawn
    policy: RolloutPolicy | None = None

    def rollout(prompts: list[Any], trainer: Any) -> dict[str, list[Any]]:
        nonlocal step, rounds, policy
        args = trainer.args
        starts = [_start(task, prompt, env_kwargs) for prompt in _each(prompts, rows_per_episode)]
        step, rounds = trainer.state.global_step, rounds + 1 if step == trainer.state.global_step else 0
        seed = hash_seed("round", args.seed, step, rounds, trainer.accelerator.process_index)
        with _playing_model(trainer) as model:
            learning = model.training
            try:
                if policy is None or policy.model is not model:
                    policy = RolloutPolicy(
                        model,
                        trainer.processing_class,
                        load_task(task).spec,
                        name="grpo",
                        rendering=rendering,
                        sampling=Sampling(args.temperature, args.top_k or 0, args.top_p, max_new_tokens),
                        max_length=max_length,
                        memory=memory,
                        batch_size=batch_size,
                        most_tokens=args.max_completion_length,
                    )
                _check(trainer, policy)
                model.eval()
                policy.begin(seed)
                episodes = _play(task, policy, starts, slots or len(starts), attempts, env_maker)
            finally:
                model.train(learning)
        rows = [
            row
            for n, episode in enumerate(episodes)
            for row in _rows(episode, rows_per_episode, random.Random(hash_seed(seed, n)), policy)
        ]
        return {name: [row[name] for row in rows] for name in rows[0]}

    return rollout


@contextmanager
def _playing_model(trainer: Any) -> Iterator[Any]:
    """The training model as one that this process can call as often as its own episodes need.

    It is the trainer's `player`, if it has one (see `trainers.grpo`), or what TRL unwraps.
    """
    if getattr(trainer, "player", None) is not None:
        yield trainer.playing_model()
        return
    if trainer.accelerator.distributed_type == DistributedType.FSDP:
        raise ValueError(
            "the weights are divided by FSDP, whose processes would wait for each other for ever, since their episodes "
            "differ in length; use trainers.grpo.EpisodeGRPOTrainer, which plays with a copy, or DDP"
        )
    from trl.models.utils import unwrap_model_for_generation  # seconds, which others in this room need not wait for

    with unwrap_model_for_generation(
        trainer.model_wrapped,
        trainer.accelerator,
        gather_deepspeed3_params=trainer.args.ds3_gather_for_generation,
        gradient_checkpointing_kwargs=trainer.args.gradient_checkpointing_kwargs,
    ) as model:
        yield model


def _check(trainer: Any, policy: RolloutPolicy) -> None:
    """Refuse settings under which the loss would be about something else than was sampled."""
    args = trainer.args
    if args.use_vllm:
        raise ValueError("use_vllm is set, but this rollout_func lets the training model itself write; leave it out")
    for name, none in NOT_SAMPLED.items():
        given = getattr(args, name, none)
        if given is not None and given != none:
            raise ValueError(f"{name} is {given!r}; here actions are sampled by temperature, top_k and top_p alone")
    if args.mask_truncated_completions and policy.renderer.stop_ids.isdisjoint(trainer.eos_token_ids):
        raise ValueError(
            "mask_truncated_completions leaves out what does not end with the model's end token, and here no action "
            "does; leave it out (which episodes were cut, reward functions see in `terminated`)"
        )


def _each(prompts: Sequence[Any], rows: int) -> list[Any]:
    """One prompt for as many rows as an episode fills; rows of one name stand together, as TRL orders them."""
    for first in range(0, len(prompts), rows):
        part = prompts[first : first + rows]
        if len(part) < rows or any(prompt != part[0] for prompt in part):
            raise ValueError(
                f"an episode fills {rows} rows (rows_per_episode), but the rows {part} are not all of one episode; "
                "give a divisor of num_generations, and of the rows that a process has of a group"
            )
    return list(prompts[::rows])


def _start(task: str, prompt: Any, env_kwargs: Mapping[str, Any] | None) -> Start:
    """The episode that a prompt names."""
    parts = prompt.split("/") if isinstance(prompt, str) else []
    if len(parts) != 3 or parts[0] != task or not parts[2].isdecimal():
        raise ValueError(
            f"the prompt {str(prompt)[:80]!r} names no episode of {task}, as in {task}/train/17; make the dataset by "
            f"Dataset.from_list(episode_rows({task!r}, range(1000)))"
        )
    return next(episode_starts(task, parts[1], [int(parts[2])], env_kwargs))


def _play(
    task: str, policy: RolloutPolicy, starts: Sequence[Start], slots: int, attempts: int, env_maker: EnvMaker
) -> list[Played | None]:
    """One episode for each start, in their order; None where all attempts failed."""
    places: dict[tuple[str, int], list[int]] = {}
    for place, start in enumerate(starts):
        places.setdefault((start.split, start.index), []).append(place)
    episodes: list[Played | None] = [None] * len(starts)
    todo: Sequence[Start] = starts
    failures: list[Failure] = []
    for _ in range(attempts):
        failures = []
        told = failures.append
        for played in play(
            task, policy, todo, slots=slots, stop=policy.stop, on_failure=told, env_maker=env_maker
        ):  # which of a group's rows gets which of its episodes is all the same
            episodes[places[played.trajectory.split, played.trajectory.index].pop(0)] = played
        todo = [failure.start for failure in failures]
        if not todo:
            break
    if len(failures) == len(starts):
        raise failures[-1].error
    return episodes


def _rows(played: Played | None, count: int, rng: random.Random, policy: RolloutPolicy) -> list[dict[str, Any]]:
    """What the trainer is given for an episode's rows."""
    if played is None:  # ids, without which TRL cannot do, and a mask that leaves them out of the loss
        filler = [min(policy.stop_ids)]
        row = {"prompt_ids": filler, "completion_ids": filler, "env_mask": [0], "logprobs": [0.0]}
        return [row | dict.fromkeys(Told._fields)] * count
    episode, sequences = played.trajectory, sampled_sequences(played)
    chosen = rng.sample(sequences, min(count, len(sequences)))
    chosen += rng.choices(sequences, k=count - len(chosen))
    rows = []
    for one in chosen:
        start = one.action_mask.index(1)
        told = Told(
            episode_return=episode.episode_return,
            turn_rewards=list(episode.rewards),
            token_rewards=one.rewards[start:],
            success=episode.success,
            terminated=episode.terminated,
            end_reason=episode.end_reason,
            num_turns=episode.num_turns,
            num_invalid=episode.num_invalid,
            stretches=len(sequences),
        )
        row = {
            "prompt_ids": one.input_ids[:start],
            "completion_ids": one.input_ids[start:],
            "env_mask": one.action_mask[start:],
            "logprobs": one.logprobs[start:],
        }
        rows.append(row | told._asdict())
    return rows


def environment_factory_for(
    task: str,
    *,
    env_kwargs: Mapping[str, Any] | None = None,
    env_maker: EnvMaker = make_env,
    attempts: int = 3,
) -> type[Any]:
    """A class for `GRPOTrainer(environment_factory=...)`: an episode as a tool named `act`.

    For models whose chat template knows tools. The dataset has the rows that `episode_rows(..., conversational=True)`
    makes. An instance plays one episode at a time and is used again and again; its environment is closed with it.

    Args:
        task: Task id.
        env_kwargs: Options of the environment; they take precedence over the test starts'.
        env_maker: Builds environments from task id and options: here, or those of a server.
        attempts: How often an episode is begun that something outside the task keeps from beginning.
    """

    class Episode:
        def __init__(self) -> None:
            self._held: list[Env] = []
            self._options: Mapping[str, Any] = {}
            self._return: float | None = 0.0
            self._playing = False
            weakref.finalize(self, _close, self._held)  # TRL closes nothing, and a method to close would be a tool

        def reset(self, *, index: int, split: str = "train", **_: Any) -> str:
            """Begin the episode that a row of the dataset names; the first observation."""
            [start] = episode_starts(task, split, [index], env_kwargs)
            for attempt in range(1, attempts + 1):
                if self._options != start.env_kwargs or attempt > 1:
                    _close(self._held)
                if not self._held:
                    self._held.append(env_maker(task, start.env_kwargs))
                    self._options = start.env_kwargs
                try:
                    observation = self._held[0].reset(start.seed)
                    break
                except EpisodeError:
                    if attempt == attempts:
                        raise
            self._return, self._playing = 0.0, True
            return observation

        def act(self, text: str) -> str:
            """
            Say or do one thing. The result is what happens then.

            Args:
                text: What you say or do, in the form that the rules ask for.
            """
            if not self._playing or self._return is None:
                return OVER
            try:
                step = self._held[0].step(text)
            except EpisodeError:
                self._return = None  # it says nothing about the policy: TRL leaves a rollout without a reward out
                return OVER
            self._return += step.reward
            self._playing = not step.done
            return step.observation if self._playing else f"{step.observation}\n\n{OVER}".lstrip()

        def get_reward(self) -> float | None:
            """The episode's return so far; None where something outside the task kept it from being finished."""
            return self._return

    Episode.__name__ = Episode.__qualname__ = task  # TRL logs rewards by it
    return Episode


def _close(held: list[Env]) -> None:
    while held:
        held.pop().close()
