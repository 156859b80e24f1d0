"""`lmrl train`: one sub-command per algorithm. Those that learn from their own episodes are in `online_cli`."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from trainers.online_cli import online
from trainers.options import (
    AROUND,
    INIT,
    Accumulation,
    AdamBeta2,
    BatchSize,
    Behavior,
    Beta,
    Config,
    CQLWeight,
    Discount,
    Env,
    Epochs,
    EvalEpisodes,
    EvalSteps,
    Gamma,
    HeadBias,
    LinearHeads,
    LoraAlpha,
    LoraRank,
    LoraTargets,
    MaxGradNorm,
    MaxLength,
    Memory,
    Output,
    Overwrite,
    Private,
    PushToHub,
    QVocab,
    Rate,
    Rendering,
    ReportTo,
    Resume,
    Revision,
    RewardScale,
    Schedule,
    Seed,
    Source,
    Steps,
    Task,
    Trunk,
    WarmupSteps,
    tell,
)

app = typer.Typer(
    help="Train a policy on a dataset of episodes.",
    no_args_is_help=True,
    epilog="Example: lmrl train bc --task maze --output maze-bc",
)


@app.callback()
def main() -> None:
    """Train a policy on a dataset of episodes."""


@app.command(
    epilog="Example: lmrl train bc --task maze --init tiny --filter top:10 --output maze-top10 "
    "--push-to-hub me/maze-top10. On several processes: torchrun --nproc_per_node 2 -m trainers "
    "bc --task maze --output maze-bc"
)
def bc(
    task: Task,
    output: Output,
    dataset: Source = None,
    config: Config = None,
    revision: Revision = None,
    init: Annotated[
        str, typer.Option(*INIT, help="First weights: tiny or small (random GPT-2), a folder, or a model on the Hub.")
    ] = "tiny",
    filter: Annotated[
        str | None,
        typer.Option(
            help="Learn from the best episodes alone: success, top:10 (percent, among equal starts), top-all:10."
        ),
    ] = None,
    rendering: Rendering = None,
    steps: Steps = None,
    epochs: Annotated[float | None, typer.Option(help="Passes over the data, instead of --steps.", min=0)] = None,
    batch_size: Annotated[int | None, typer.Option(help="Sequences per step and process.", min=1)] = None,
    accumulation: Accumulation = 1,
    lr: Annotated[float | None, typer.Option(help="Peak learning rate.", min=0)] = None,
    lora_rank: LoraRank = None,
    lora_alpha: LoraAlpha = None,
    lora_targets: LoraTargets = None,
    max_length: MaxLength = None,
    memory: Memory = None,
    eval_steps: EvalSteps = 0,
    eval_episodes: EvalEpisodes = 128,
    env: Env = None,
    seed: Seed = 0,
    report_to: ReportTo = "none",
    push_to_hub: PushToHub = None,
    private: Private = False,
    resume: Resume = True,
    overwrite: Overwrite = False,
) -> None:
    """Behaviour cloning, or with --filter filtered behaviour cloning."""
    from trainers.bc import train_bc  # torch takes seconds, which --help need not wait for

    result = train_bc(
        task,
        dataset or f"lmrl/{task}",
        output,
        config=config,
        revision=revision,
        init=init,
        rule=filter,
        rendering=rendering,
        steps=steps,
        epochs=epochs,
        batch_size=batch_size,
        accumulation=accumulation,
        lr=lr,
        lora_rank=lora_rank,
        lora_alpha=lora_alpha,
        lora_targets=lora_targets,
        max_length=max_length,
        memory=memory,
        eval_steps=eval_steps,
        eval_episodes=eval_episodes,
        env=env,
        seed=seed,
        report_to=report_to,
        push_to_hub=push_to_hub,
        private=private,
        resume=resume,
        overwrite=overwrite,
    )
    tell(result, push_to_hub, task)


@app.command(
    epilog="Example: lmrl train ilql --task maze --init maze-bc --tau 0.99 --cql-weight 0.5 --output maze-ilql"
)
def ilql(
    task: Task,
    output: Output,
    init: Behavior,
    trunk: Trunk = None,
    dataset: Source = None,
    config: Config = None,
    revision: Revision = None,
    rendering: Rendering = None,
    steps: Steps = None,
    epochs: Epochs = 3.0,
    batch_size: BatchSize = 128,
    accumulation: Accumulation = 1,
    lr: Rate = 1e-4,
    schedule: Schedule = "constant",
    warmup_steps: WarmupSteps = 0.0,
    adam_beta2: AdamBeta2 = 0.95,
    max_grad_norm: MaxGradNorm = 1.0,
    gamma: Gamma = 0.99,
    discount: Discount = "token",
    reward_scale: RewardScale = 1.0,
    cql_weight: CQLWeight = 0.01,
    tau: Annotated[float, typer.Option(help="Expectile of V, between 0 and 1.")] = 0.7,
    target_rate: Annotated[float, typer.Option(help="Share that the targets move by after each step.")] = 0.005,
    beta: Beta = 4.0,
    linear_heads: LinearHeads = False,
    head_bias: HeadBias = 0.0,
    q_vocab: QVocab = "all",
    lora_rank: LoraRank = None,
    lora_alpha: LoraAlpha = None,
    lora_targets: LoraTargets = None,
    max_length: MaxLength = None,
    eval_steps: EvalSteps = 0,
    eval_episodes: EvalEpisodes = 128,
    env: Env = None,
    seed: Seed = 0,
    report_to: ReportTo = "none",
    push_to_hub: PushToHub = None,
    private: Private = False,
    resume: Resume = True,
    overwrite: Overwrite = False,
) -> None:
    """Implicit language Q-learning from offline episodes."""
    _train_values("ilql", locals())


@app.command(epilog="Example: lmrl train mc --task maze --init maze-bc --cql-weight 0.5 --beta 16 --output maze-mc")
def mc(
    task: Task,
    output: Output,
    init: Behavior,
    trunk: Trunk = None,
    dataset: Source = None,
    config: Config = None,
    revision: Revision = None,
    rendering: Rendering = None,
    steps: Steps = None,
    epochs: Epochs = 3.0,
    batch_size: BatchSize = 128,
    accumulation: Accumulation = 1,
    lr: Rate = 1e-4,
    schedule: Schedule = "constant",
    warmup_steps: WarmupSteps = 0.0,
    adam_beta2: AdamBeta2 = 0.95,
    max_grad_norm: MaxGradNorm = 1.0,
    gamma: Gamma = 0.99,
    discount: Discount = "token",
    reward_scale: RewardScale = 1.0,
    cql_weight: CQLWeight = 0.01,
    beta: Beta = 4.0,
    linear_heads: LinearHeads = False,
    head_bias: HeadBias = 0.0,
    q_vocab: QVocab = "all",
    lora_rank: LoraRank = None,
    lora_alpha: LoraAlpha = None,
    lora_targets: LoraTargets = None,
    max_length: MaxLength = None,
    eval_steps: EvalSteps = 0,
    eval_episodes: EvalEpisodes = 128,
    env: Env = None,
    seed: Seed = 0,
    report_to: ReportTo = "none",
    push_to_hub: PushToHub = None,
    private: Private = False,
    resume: Resume = True,
    overwrite: Overwrite = False,
) -> None:
    """Monte Carlo returns: Q of the data's own policy, from offline episodes."""
    _train_values("mc", locals())


def _train_values(algorithm: str, options: dict[str, Any]) -> None:
    from trainers.value_training import ValueRun, train_values  # torch takes seconds, which --help need not wait for

    output, source = options.pop("output"), options.pop("dataset") or f"lmrl/{options['task']}"
    around = {name: options.pop(name) for name in AROUND}
    result = train_values(ValueRun(algorithm=algorithm, source=source, **options), output, **around)
    tell(result, around["push_to_hub"], options["task"])


app.registered_commands += online.registered_commands
