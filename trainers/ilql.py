"""Implicit language Q-learning: Q and V of a token-level decision process, from offline episodes.

Snell et al., "Offline RL for Natural Language Generation with Implicit Language Q Learning" (arXiv 2206.11871),
in the form of LMRL-Gym (arXiv 2311.18232, section 5): for each of the agent's tokens, with its state s, the token a,
its reward r and the state s' before the agent's next token,

    L_Q = 1/2 (Q_i(s, a) - (r + gamma V(s')))^2                for both heads i, V(s') without gradient,
    L_V = 1/2 |tau - [Q^(s, a) < V(s)]| (V(s) - Q^(s, a))^2    with Q^ the smaller of the two target heads,
    L_CQL = log sum_b exp Q_i(s, b) - Q_i(s, a)                for both heads,

each a mean over tokens. A terminated episode has no s', which counts once: in its last token. The targets follow the
trunk and heads by a moving average after each step of the optimiser.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from transformers import Trainer, TrainerCallback, TrainingArguments

from trainers.adapters import SLOW, VALUE, activate, active, adapter_pairs, add_slow_adapter, has_adapters
from trainers.losses import ilql_loss
from trainers.monitor import Measured
from trainers.runs import total_count
from trainers.sharding import keep_inputs_exact, sharding_checkpoints
from trainers.values import HeadSettings, ValueModel, frozen_copy, make_head

# What is logged beside the loss; these are means of values, in the units of returns.
VALUE_NAMES = {"values/q", "values/v", "values/target_q"}
# Mean values further outside of the possible returns than so many times their range have diverged.
DIVERGED = 3.0


@dataclass
class ValueConfig(TrainingArguments):
    """`transformers.TrainingArguments` with the defaults of LMRL-Gym's value methods (Table 3), and theirs.

    bfloat16 and gradient checkpointing are on where there is a GPU that does them, off on a CPU.
    """

    learning_rate: float = field(default=1e-4, metadata={"help": "Learning rate of trunk and heads."})
    lr_scheduler_type: str = field(default="constant", metadata={"help": "Schedule of the learning rate."})
    adam_beta2: float = field(default=0.95, metadata={"help": "Adam's second beta."})
    bf16: bool | None = field(  # type: ignore[assignment]
        default=None, metadata={"help": "Compute in bfloat16; None is only on a GPU that has it."}
    )
    logging_nan_inf_filter: bool = field(default=False, metadata={"help": "Hide losses that are no numbers."})
    gamma: float = field(default=0.99, metadata={"help": "Discount factor."})
    discount: str = field(default="token", metadata={"help": "What discounts: each token, or each turn."})
    cql_weight: float = field(default=0.01, metadata={"help": "Weight of the conservative term."})

    def __post_init__(self) -> None:
        on_gpu = torch.cuda.is_available() and not self.use_cpu
        self.remove_unused_columns = False
        self.dataloader_pin_memory = self.dataloader_pin_memory and on_gpu
        if self.bf16 is None:
            self.bf16 = not self.fp16 and on_gpu and torch.cuda.is_bf16_supported()
        if self.gradient_checkpointing is None and self.activation_checkpointing is None:
            self.activation_checkpointing = on_gpu and not sharding_checkpoints()
        if self.ddp_find_unused_parameters is None:
            self.ddp_find_unused_parameters = False  # the loss uses all; looking for others costs a walk of the graph
        super().__post_init__()  # type: ignore[no-untyped-call]


@dataclass
class ILQLConfig(ValueConfig):
    """Settings of ILQL beside those of every value method."""

    tau: float = field(default=0.7, metadata={"help": "Expectile of V."})
    target_rate: float = field(default=0.005, metadata={"help": "Share that targets move by after each step."})


class ILQLModel(ValueModel):
    """Trunk with Q1, Q2 and V, and target copies of trunk, Q1 and Q2; of a trunk with adapters, an adapter is the copy.

    Args:
        trunk: Body of a causal language model, see `values.trunk_of` and `values.lora_trunk`.
        settings: Form of the heads.
        tau: Expectile of V, between 0 and 1.
        cql_weight: Weight of the conservative term.
    """

    def __init__(self, trunk: Any, settings: HeadSettings, *, tau: float = 0.7, cql_weight: float = 0.01) -> None:
        super().__init__(trunk, settings, q_heads=2)
        self.tau, self.cql_weight = tau, cql_weight
        self.v = make_head(trunk, 1, settings)
        # Named so that no name ends in another's: PEFT and others match by endings.
        self.slow_head1, self.slow_head2 = frozen_copy(self.q1), frozen_copy(self.q2)
        self.slow_trunk: Any = None
        if has_adapters(trunk):
            add_slow_adapter(trunk)
        else:
            self.slow_trunk = frozen_copy(trunk)

    def moving_pairs(self) -> Any:
        """Trunk (or its adapters), Q1 and Q2 with their targets."""
        yield from adapter_pairs(self.trunk) if self.slow_trunk is None else [(self.trunk, self.slow_trunk)]
        yield from ((self.q1, self.slow_head1), (self.q2, self.slow_head2))

    def slow_hidden(self, input_ids: Tensor, attention_mask: Tensor) -> Tensor:
        """Hidden states of the target trunk, shape (B T, H)."""
        if self.slow_trunk is not None:
            return self.hidden(self.slow_trunk, input_ids, attention_mask)
        with active(self.trunk, SLOW):
            return self.hidden(self.trunk, input_ids, attention_mask)

    def forward(
        self,
        input_ids: Tensor,
        attention_mask: Tensor,
        states: Tensor,
        tokens: Tensor,
        next_states: Tensor,
        bootstrap: Tensor,
        rewards: Tensor,
        discounts: Tensor,
        weights: Tensor,
        returns: Tensor | None = None,
        count: Tensor | None = None,
    ) -> dict[str, Tensor]:
        """The loss of a batch from `trainers.transitions.transition_collator`, whose documentation has the shapes; and
        the number of its action `tokens`, weights included, with sums over them of what is worth logging.

        Args:
            count: Number of action tokens, weights included, in all batches of the optimiser's step; None takes this
                batch's.
        """
        hidden = self.hidden(self.trunk, input_ids, attention_mask)
        at = hidden[states]
        q1, cql1 = self.q1(at, tokens, weights)
        assert self.q2 is not None
        q2, cql2 = self.q2(at, tokens, weights)
        v = self.v(at).squeeze(-1)
        with torch.no_grad():
            next_v = self.v(hidden[next_states]).squeeze(-1)
            slow = self.slow_hidden(input_ids, attention_mask)[states]
            target_q = torch.minimum(self.slow_head1(slow, tokens), self.slow_head2(slow, tokens))
        here = weights.sum()
        divisor = here if count is None else count
        loss = ilql_loss(
            q1=q1, q2=q2, v=v, target_q=target_q, next_v=next_v, rewards=rewards, discounts=discounts,
            bootstrap=bootstrap, cql1=cql1, cql2=cql2, tau=self.tau, cql_weight=self.cql_weight,
            count=divisor, weights=weights,
        )  # fmt: skip
        with torch.no_grad():
            values = {"values/q": torch.minimum(q1, q2), "values/v": v, "values/target_q": target_q}
            sums = {name: (value.float() * weights).sum() for name, value in values.items()}
            losses = {
                "losses/q": (loss.q1 + loss.q2) / 2,
                "losses/v": loss.v,
                "losses/cql": (loss.cql1 + loss.cql2) / 2,
            }
            sums |= {name: value * divisor for name, value in losses.items()}
        return {"loss": loss.total, "tokens": here, **sums}


class MoveTargets(TrainerCallback):
    """Moves the targets once after each step of the optimiser, however many batches it was computed in."""

    def __init__(self, trainer: Trainer, rate: float) -> None:
        self._trainer, self._rate = trainer, rate

    def on_optimizer_step(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """Called by the trainer between the optimiser's step and the next gradient."""
        model = self._trainer.accelerator.unwrap_model(self._trainer.model, keep_torch_compile=False)
        model.move_targets(self._rate, seed=state.global_step)


class ValueTrainer(Measured, Trainer):
    """`transformers.Trainer` for value models on rows of `trainers.transitions`.

    The loss of a step is a sum over its action tokens, of all batches and processes, divided by their number: so
    neither accumulation nor the number of processes changes it.

    Attributes:
        measuring: How it evaluates by playing, see `trainers.monitor`; None evaluates by the loss.
        value_range: Lowest and highest return that an episode can have. Mean values far outside have diverged. None
            does not look.
    """

    loss_is_scaled_for_ga = True
    value_range: tuple[float, float] | None = None

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.model_accepts_loss_kwargs = True
        keep_inputs_exact(getattr(self.accelerator.state, "fsdp_plugin", None))
        self._sums: dict[str, Tensor] = {}

    def _prepare_input(self, data: Any) -> Any:
        """On the device; and in float32, where DeepSpeed would have rewards and returns in the type of the weights."""
        return data.to(self.args.device) if isinstance(data, Tensor) else super()._prepare_input(data)

    def evaluate(self, *args: Any, **kwargs: Any) -> dict[str, float]:
        """As in `Measured`; then an adapter is on again for training."""
        found = super().evaluate(*args, **kwargs)
        activate(self.accelerator.unwrap_model(self.model, keep_torch_compile=False).trunk, VALUE)
        return found

    def get_batch_samples(self, epoch_iterator: Any, num_batches: int, device: torch.device) -> Any:
        """The batches of one optimiser's step and the number of action tokens in them, weights included."""
        batches, _ = super().get_batch_samples(epoch_iterator, num_batches, device)
        if not batches:
            return batches, None
        return batches, total_count(self, [batch["weights"].sum() for batch in batches], device)

    def compute_loss(
        self,
        model: Any,
        inputs: dict[str, Tensor],
        return_outputs: bool = False,
        num_items_in_batch: Tensor | int | None = None,
    ) -> Any:
        """The loss of one batch, as `Trainer` wants it."""
        outputs = model(**inputs, count=num_items_in_batch)
        loss = outputs["loss"]
        for name, value in outputs.items():
            if name != "loss":
                self._sums[name] = self._sums.get(name, 0.0) + value.detach()
        if self.args.average_tokens_across_devices and num_items_in_batch is not None:
            loss = loss * self.accelerator.num_processes  # DDP takes the mean over processes, the count is of all
        return (loss, outputs) if return_outputs else loss

    def log(self, logs: dict[str, float], start_time: float | None = None) -> None:
        """Add what the loss is made of: means over the action tokens since the last log, on all processes.

        Raises:
            FloatingPointError: The loss is no number any more, or the values are beyond all that can be.
        """
        if "loss" in logs:
            means = self._means()
            self._check_divergence(logs["loss"], means)
            logs = {**logs, **means}
        super().log(logs, start_time)

    def _means(self) -> dict[str, float]:
        sums = {name: self.accelerator.reduce(value, "sum").item() for name, value in self._sums.items()}
        self._sums.clear()
        tokens = max(sums.pop("tokens", 1.0), 1.0)
        return {name: value / tokens for name, value in sums.items()}

    def _check_divergence(self, loss: float, means: dict[str, float]) -> None:
        told = f"the loss is {loss}" if not math.isfinite(loss) else ""
        if self.value_range is not None:
            low, high = self.value_range
            room = DIVERGED * max(high - low, 1.0)
            for name in VALUE_NAMES & means.keys():
                if not low - room <= means[name] <= high + room:
                    told = told or f"the mean of {name} is {means[name]:.4g}, and returns are from {low:g} to {high:g}"
        if told:
            raise FloatingPointError(
                f"{told} after {self.state.global_step} steps: training has diverged. Lower the learning rate, or "
                "begin again with another seed"
            )


class ILQLTrainer(ValueTrainer):
    """Trains an `ILQLModel`, and moves its targets."""

    def __init__(self, model: ILQLModel, args: ILQLConfig, **kwargs: Any) -> None:
        super().__init__(model=model, args=args, **kwargs)
        self.add_callback(MoveTargets(self, args.target_rate))
