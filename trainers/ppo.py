"""Multi-turn PPO: a language model learns from episodes that it plays itself (LMRL-Gym, arXiv 2311.18232, section 5).

In rounds: it plays episodes (`trainers.online`); what it then thinks of the tokens that it sampled, and of the states
before them, is computed once, by the same pass that learns (`trainers.actor_critic`); rewards, less a penalty for each
token's divergence from the reference, become advantages over each episode's whole chain of action tokens
(`trainers.ppo_rows`, `trainers.ppo_losses`); and several passes over the round follow, each in minibatches. Nothing is
ever tokenised again: the ids that are learned from are those that were sampled.

A trainer of transformers, in the form of TRL's (whose own PPO is gone): its steps are minibatches, and a round is
`num_ppo_epochs * num_mini_batches` of them. What it logs of each round is also its memory: the weight of the penalty
and the first round, which alarms compare with, are read from there.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from env_servers.seeding import hash_seed
from env_servers.tasks import load_task
from trainers.actor_critic import ActorCritic, LossSettings
from trainers.adapters import LoraSettings
from trainers.alarms import ADVICE, Limits, TrainingCollapsed, alarm_of_round, alarm_of_update
from trainers.ilql import ValueConfig, ValueTrainer
from trainers.ppo_losses import ESTIMATORS, Advantages, KLController, divergence, whiten
from trainers.ppo_rows import RoundRows, Row, advantages_of, filler, load_rows, make_batch, rows_of
from trainers.rounds import PlaysRounds, RoundSettings
from trainers.runs import make_renderer
from trainers.sequences import row_collator
from trainers.tokens import IGNORED, Renderer
from trainers.transitions import Discounting, check_discounting
from trainers.values import HeadSettings

KL_WEIGHT, KL = "objective/kl_coef", "objective/kl"


@dataclass
class PPOConfig(RoundSettings, ValueConfig):
    """`transformers.TrainingArguments` with PPO's: TRL's names where its PPO had them, LMRL-Gym's values (Table 3).

    bfloat16 and gradient checkpointing are on where there is a GPU that does them.
    """

    learning_rate: float = field(default=1e-5, metadata={"help": "Learning rate of policy and value head."})
    adam_beta2: float = field(default=0.999, metadata={"help": "Adam's second beta; a smaller one lets it jump."})
    cql_weight: float = field(default=0.0, init=False, repr=False, metadata={"help": "Has no part in PPO."})
    num_ppo_epochs: int = field(default=4, metadata={"help": "Passes over a round."})
    num_mini_batches: int = field(default=4, metadata={"help": "Steps of the optimiser in a pass."})
    cliprange: float = field(default=0.2, metadata={"help": "How far the ratio of probabilities may go from 1."})
    cliprange_value: float = field(default=0.2, metadata={"help": "How far a value may go; 0 is any distance."})
    vf_coef: float = field(default=0.5, metadata={"help": "Weight of the value loss."})
    kl_coef: float = field(default=0.01, metadata={"help": "Weight of the penalty on divergence; 0 has no reference."})
    kl_estimator: str = field(default="k1", metadata={"help": "Of the penalty: k1 or k3."})
    kl_target: float | None = field(default=None, metadata={"help": "Nats per token to adapt kl_coef to."})
    kl_horizon: int = field(default=10_000, metadata={"help": "Episodes that adapting takes."})
    lam: float = field(default=0.95, metadata={"help": "Lambda of the generalised advantages."})
    reward_scale: float = field(default=1.0, metadata={"help": "What rewards are multiplied by."})
    whiten_rewards: bool = field(default=False, metadata={"help": "Give rewards, too, variance 1 over the round."})
    bc_coef: float = field(default=1.0, metadata={"help": "Weight of cross entropy on bc_dataset, if there is one."})
    bc_batch_size: int = field(default=32, metadata={"help": "Rows of bc_dataset per step, of all processes."})
    local_rollout_forward_batch_size: int = field(default=64, metadata={"help": "Rows in a pass without gradient."})
    linear_head: bool = field(default=True, metadata={"help": "A value head of one layer instead of two."})
    head_bias: float = field(default=0.0, metadata={"help": "First value of all states."})
    alarm_kl: float = field(default=Limits().kl, metadata={"help": "See trainers.alarms; 0 is off, as below."})
    alarm_ratio: float = field(default=Limits().ratio, metadata={"help": "See there."})
    alarm_entropy: float = field(default=Limits().entropy, metadata={"help": "See there."})
    alarm_value_loss: float = field(default=Limits().value_loss, metadata={"help": "See there."})
    alarm_invalid: float = field(default=Limits().invalid, metadata={"help": "See there."})

    def __post_init__(self) -> None:
        super().__post_init__()
        check_discounting(Discounting(self.gamma, self.discount, self.reward_scale))
        self.check_positive("num_ppo_epochs", "num_mini_batches", "kl_horizon")
        if not 0 <= self.lam <= 1:
            raise ValueError(f"lam is {self.lam}; allowed are numbers from 0 to 1")
        if self.kl_estimator not in ESTIMATORS:
            raise ValueError(f"kl_estimator is {self.kl_estimator!r}; allowed: {', '.join(ESTIMATORS)}")

    @property
    def steps_per_round(self) -> int:
        """Steps of the optimiser."""
        return self.num_ppo_epochs * self.num_mini_batches

    @property
    def limits(self) -> Limits:
        """Where alarms go off."""
        return Limits(*(getattr(self, f"alarm_{name}") for name in Limits._fields))


class _Assessed(NamedTuple):
    logprobs: Tensor
    values: Tensor
    advantages: Advantages


class PPOTrainer(PlaysRounds, ValueTrainer):
    """Plays rounds of a task, and learns from them.

    Args:
        model: A causal language model. With adapters it is changed in place, else all its weights are learned.
        args: Settings.
        task: Task id.
        processing_class: The model's tokenizer.
        ref_model: What the penalty holds the policy to; None is the model as it is given.
        peft_config: Learn adapters of this form; None learns all weights.
        bc_dataset: Rows of `trainers.sequences.build_dataset`, to be imitated beside.
        renderer: How it reads episodes; None is what suits the model.
        env_kwargs: Options of the environment.
        env: Servers that are played on, see `env_servers.client.remote_envs`; None plays here.
        name: Goes into the records of its episodes.
        transcripts: Folder for sample episodes of each round; None writes none.
    """

    def __init__(
        self,
        model: Any,
        args: PPOConfig,
        task: str,
        processing_class: Any,
        *,
        ref_model: Any = None,
        peft_config: LoraSettings | None = None,
        bc_dataset: Any = None,
        renderer: Renderer | None = None,
        env_kwargs: Mapping[str, Any] | None = None,
        env: str | None = None,
        name: str = "ppo",
        transcripts: Path | None = None,
        **options: Any,
    ) -> None:
        spec = load_task(task).spec
        renderer = renderer or make_renderer(model, processing_class, spec, None, None)
        with torch.random.fork_rng(devices=[]):  # adapters begin at random, and alike in all processes
            torch.manual_seed(args.seed)
            actor = ActorCritic(
                model,
                HeadSettings(args.linear_head, args.head_bias),
                LossSettings(args.cliprange, args.cliprange_value, args.vf_coef, args.bc_coef),
                temperature=args.temperature,
                lora=peft_config,
                ref_model=ref_model,
                with_reference=args.kl_coef > 0,
            )
        options.setdefault("eval_dataset", [] if args.eval_strategy != "no" else None)  # it asks for one, in vain
        super().__init__(model=actor, args=args, processing_class=processing_class, **options)
        self._bc_dataset = bc_dataset
        self._pad_id = int(min(renderer.stop_ids))  # never read: padding is on the right, and masked
        self._collate_bc = row_collator(processing_class)
        self.controller = KLController(args.kl_coef, args.kl_target, args.kl_horizon)
        self.value_range = (args.reward_scale * spec.min_return, args.reward_scale * spec.max_return)
        self.prepare_rounds(task, renderer, env_kwargs=env_kwargs, env=env, name=name, transcripts=transcripts)

    def acting_part(self, model: ActorCritic) -> Any:
        """The language model in it."""
        return model.model

    def round_batches(self, known: RoundRows, number: int, begun: int) -> Iterator[dict[str, Any]]:
        """Several passes over the round's rows, each in minibatches."""
        args: Any = self.args
        for passed in range(args.num_ppo_epochs):
            chosen = known.minibatches(args.num_mini_batches, hash_seed("minibatches", args.seed, number, passed))
            for mini, mine in enumerate(chosen):
                at = passed * args.num_mini_batches + mini
                if at >= begun:
                    yield from self._parts(known, mine, number * args.steps_per_round + at)

    def play_round(self, number: int) -> RoundRows:
        """Play a round, see what the policy makes of it, and log it.

        Raises:
            TrainingCollapsed: An alarm went off.
            EpisodeError: No episode could be played.
        """
        played, _, metrics = self.play(number)
        by_episode = {one.trajectory.index: rows_of(one, self.policy) for one in played}
        counts = dict(self.gathered([(place, len(rows)) for place, rows in by_episode.items()]))
        rows = [row for of_episode in by_episode.values() for row in of_episode]
        scored = self._assess(rows, metrics)
        known = RoundRows(rows, counts, scored.logprobs, scored.values, *scored.advantages)
        known.save(self.round_file(number, "pt"))
        self.log(metrics)
        first = next(entry for entry in self.state.log_history if KL in entry)
        args: Any = self.args
        vocabulary = self.policy.model.config.get_text_config().vocab_size
        self._stop_on(alarm_of_round(metrics, first, args.limits, vocabulary), f"in round {number}")
        return known

    def begun_round(self, number: int) -> RoundRows:
        """What was known of a round when the run was stopped."""
        return load_rows(self.kept_file(number, "pt"))

    def _assess(self, rows: list[Row], metrics: dict[str, float]) -> _Assessed:
        """What is known of all action tokens before the passes; adds to the metrics."""
        args: Any = self.args
        scores = self._score(rows)
        bootstrap = torch.tensor([value for value, row in zip(scores.pop("next"), rows, strict=True) if row.last])
        logprobs, values = scores["logprobs"], scores["values"]
        sampled = torch.tensor([number for row in rows for number in row.logprobs])
        coefficient = self._kl_weight()
        penalties = coefficient * divergence(logprobs, scores["ref_logprobs"], args.kl_estimator)
        rewards = torch.tensor([number for row in rows for number in row.rewards]) * args.reward_scale - penalties
        if args.whiten_rewards:
            rewards = whiten(rewards, *self._moments(rewards), shift_mean=False)
        advantages, returns = advantages_of(
            rows, rewards, values, bootstrap, gamma=args.gamma, lam=args.lam, per_turn=args.discount == "turn"
        )
        spread, error = self._moments(returns)[1], self._moments(returns - values)[1]
        metrics |= {
            KL: self._moments(divergence(logprobs, scores["ref_logprobs"], "k3"))[0],
            KL_WEIGHT: coefficient,
            "objective/entropy": self._moments(scores["entropies"])[0],
            "objective/penalty": self._moments(penalties)[0],
            "values/explained_variance": 1 - error / spread if spread > 0 else 0.0,
            "sampler/mismatch": self._moments((logprobs - sampled).abs())[0],
        }
        return _Assessed(logprobs, values, Advantages(whiten(advantages, *self._moments(advantages)), returns))

    @torch.no_grad()
    def _score(self, rows: list[Row]) -> dict[str, Tensor]:
        """What the training pass makes of rows: of all action tokens what `ActorCritic` tells, and of each row the
        value of its `next_state` (0 where it has none)."""
        args: Any = self.args
        size = args.local_rollout_forward_batch_size
        order = sorted(range(len(rows)), key=lambda number: len(rows[number].input_ids))
        order = [number for number in order if rows[number].places or rows[number].next_state is not None]
        parts = [order[start : start + size] for start in range(0, len(order), size)]
        most = max(self.gathered([len(parts)]))
        found: list[dict[str, Tensor]] = [{}] * len(rows)
        for part in [*parts, *([[]] * (most - len(parts)))]:  # all processes call the model equally often
            some = [rows[number] for number in part] or [filler(self._pad_id)]
            batch = make_batch(some, self._pad_id, states=True)
            inputs: Any = self._prepare_inputs(batch.inputs)
            told = {name: tensor.float().cpu() for name, tensor in self.model_wrapped(**inputs).items()}
            for within, number in enumerate(part):
                mine = batch.inputs["rows"] == within
                found[number] = {name: tensor[mine & batch.acts] for name, tensor in told.items()}
                found[number]["next"] = told["values"][mine & ~batch.acts].sum()[None]
        names = ("logprobs", "ref_logprobs", "values", "entropies", "next")
        empty = dict.fromkeys(names[:-1], torch.zeros(0)) | {"next": torch.zeros(1)}
        each = [of_row or empty for of_row in found] or [dict.fromkeys(names, torch.zeros(0))]
        return {name: torch.cat([of_row[name] for of_row in each]) for name in names}

    def _parts(self, rows: RoundRows, mine: list[int], step: int) -> Iterator[dict[str, Any]]:
        """One minibatch of this process, in as many parts as gradients are accumulated over."""
        parts = self.args.gradient_accumulation_steps
        mine = sorted(mine, key=lambda number: len(rows.rows[number].input_ids))
        cuts = [len(mine) * part // parts for part in range(parts + 1)]
        cloned = self._bc_rows(step)
        for part in range(parts):
            batch: dict[str, Any] = rows.batch(mine[cuts[part] : cuts[part + 1]], self._pad_id)
            if chosen := cloned[part::parts]:
                batch["bc"] = self._collate_bc(chosen)
            yield batch

    def _bc_rows(self, step: int) -> list[dict[str, Any]]:
        """This process's offline rows for a step; each with the number of all targets in it, of all processes."""
        args: Any = self.args
        if self._bc_dataset is None or not args.bc_coef:
            return []
        draws = torch.Generator().manual_seed(hash_seed("bc", args.seed, step))
        numbers = torch.randint(len(self._bc_dataset), (args.bc_batch_size,), generator=draws).tolist()
        rows = [self._bc_dataset[number] for number in numbers]
        count = sum(label != IGNORED for row in rows for label in row["labels"][1:])
        return [{**row, "weight": count} for row in rows][self.rollouts.process :: self.rollouts.processes]

    def _kl_weight(self) -> float:
        """The weight of the penalty in the round to come, from what was logged of the last one."""
        used, kl = self.logged(KL_WEIGHT), self.logged(KL)
        return self.controller.after(used[-1], kl[-1], self.rollouts.episodes) if used else self.controller.first

    def _moments(self, numbers: Tensor) -> tuple[float, float]:
        """Mean and population variance over all processes; 0 where there are none."""
        sums = self.gathered([(numbers.numel(), numbers.double().sum().item())])
        count = max(sum(n for n, _ in sums), 1)
        mean = sum(total for _, total in sums) / count
        squares = self.gathered([(numbers.double() - mean).square().sum().item()])
        return mean, sum(squares) / count

    def _check_divergence(self, loss: float, means: dict[str, float]) -> None:
        super()._check_divergence(loss, means)
        args: Any = self.args
        before = self.logged("losses/value")
        where = f"after {self.state.global_step} steps"
        self._stop_on(alarm_of_update(means, before[0] if before else None, args.limits), where)

    def _stop_on(self, alarm: str | None, where: str) -> None:
        if alarm is not None:
            raise TrainingCollapsed(f"training was stopped {where}: {alarm}. {ADVICE}")

    def _save(self, output_dir: str | None = None, state_dict: dict[str, Any] | None = None) -> None:
        actor: Any = self.accelerator.unwrap_model(self.model, keep_torch_compile=False)
        left_out = set(actor.unsaved_names())
        state = actor.state_dict() if state_dict is None else state_dict  # it is given where DeepSpeed gathered it
        super()._save(output_dir, state_dict={name: tensor for name, tensor in state.items() if name not in left_out})

    def get_batch_samples(self, epoch_iterator: Any, num_batches: int, device: torch.device) -> Any:
        """As in `ValueTrainer`; and the offline rows' number of targets goes where the loss finds it."""
        batches, count = super().get_batch_samples(epoch_iterator, num_batches, device)
        for batch in batches:
            if "bc" in batch:
                batch["bc"]["count"] = batch["bc"].pop("weight")[0].float()
        return batches, count
