"""The sub-commands of `lmrl train` that learn from episodes of their own: ppo, online-bc, online-ilql, grpo."""

from __future__ import annotations

from typing import Annotated

import typer

from trainers.options import (
    AROUND,
    INIT,
    Accumulation,
    AdamBeta2,
    Beta,
    Config,
    CQLWeight,
    Discount,
    Env,
    EvalEpisodes,
    EvalSteps,
    Gamma,
    Generation,
    HeadBias,
    LinearHeads,
    LoraAlpha,
    LoraRank,
    LoraTargets,
    MaxGradNorm,
    MaxLength,
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
    Task,
    tell,
)

online = typer.Typer()


@online.command(
    epilog="Example: lmrl train ppo --task maze --model maze-bc --rollouts 128 --lr 1e-5 --output maze-ppo. On several "
    "processes: torchrun --nproc_per_node 2 -m trainers ppo --task maze --model maze-bc --output maze-ppo"
)
def ppo(
    task: Task,
    output: Output,
    init: Annotated[
        str, typer.Option(*INIT, help="The policy to begin with, as from `lmrl train bc`: folder or repository.")
    ],
    rounds: Annotated[int, typer.Option(help="Rounds of playing and learning.", min=1)] = 100,
    rollouts: Annotated[int, typer.Option(help="Episodes of a round, of all processes together.", min=1)] = 512,
    slots: Annotated[int, typer.Option(help="Episodes at the same time, in each process.", min=1)] = 64,
    num_ppo_epochs: Annotated[int, typer.Option(help="Passes over a round.", min=1)] = 4,
    num_mini_batches: Annotated[int, typer.Option(help="Steps of the optimiser in a pass.", min=1)] = 4,
    accumulation: Accumulation = 1,
    lr: Rate = 1e-5,
    schedule: Schedule = "constant",
    adam_beta2: AdamBeta2 = 0.999,
    max_grad_norm: MaxGradNorm = 1.0,
    gamma: Gamma = 0.99,
    lam: Annotated[float, typer.Option(help="Lambda of the generalised advantages.", min=0, max=1)] = 0.95,
    discount: Discount = "token",
    reward_scale: RewardScale = 1.0,
    whiten_rewards: Annotated[
        bool, typer.Option("--whiten-rewards", help="Give rewards variance 1 over a round, too.")
    ] = False,
    cliprange: Annotated[float, typer.Option(help="How far the ratio of probabilities may go from 1.", min=0)] = 0.2,
    cliprange_value: Annotated[
        float,
        typer.Option(help="How far a value may go from the old one, in scaled rewards; 0 is any distance.", min=0),
    ] = 0.2,
    vf_coef: Annotated[float, typer.Option(help="Weight of the value loss.", min=0)] = 0.5,
    kl_coef: Annotated[
        float, typer.Option(help="Weight of the penalty on divergence from the first policy; 0 is none.", min=0)
    ] = 0.01,
    kl_estimator: Annotated[str, typer.Option(help="Of that divergence: k1 or k3.")] = "k1",
    kl_target: Annotated[
        float | None, typer.Option(help="Nats per token to adapt --kl-coef to; by default it is fixed.", min=0)
    ] = None,
    kl_horizon: Annotated[int, typer.Option(help="Episodes that adapting takes.", min=1)] = 10_000,
    dataset: Annotated[
        str | None, typer.Option(help="Imitate its episodes beside: folder, or dataset on the Hub.")
    ] = None,
    config: Config = None,
    revision: Revision = None,
    bc_coef: Annotated[float, typer.Option(help="Weight of that.", min=0)] = 1.0,
    bc_batch_size: Annotated[int, typer.Option(help="Its sequences in a step.", min=1)] = 32,
    temperature: Annotated[float, typer.Option(help="Of sampling.")] = 1.0,
    response_length: Annotated[int | None, typer.Option(help="Most tokens of an action.", min=1)] = None,
    max_episode_tokens: Annotated[
        int | None, typer.Option(help="Most tokens said in an episode, which is cut then.", min=1)
    ] = None,
    head_bias: HeadBias = 0.0,
    rendering: Rendering = None,
    max_length: MaxLength = None,
    lora_rank: LoraRank = None,
    lora_alpha: LoraAlpha = None,
    lora_targets: LoraTargets = None,
    alarm_kl: Annotated[float, typer.Option(help="Stop above so many nats per token; 0 never.", min=0)] = 5.0,
    alarm_ratio: Annotated[float, typer.Option(help="The same, of the change in one round.", min=0)] = 1.0,
    alarm_entropy: Annotated[float, typer.Option(help="Stop a worse policy below so many nats.", min=0)] = 0.001,
    alarm_value_loss: Annotated[float, typer.Option(help="Stop above so many times the first one.", min=0)] = 10.0,
    alarm_invalid: Annotated[float, typer.Option(help="Stop above this share of invalid actions.", min=0)] = 0.5,
    save_rounds: Annotated[int, typer.Option(help="Rounds between checkpoints.", min=1)] = 1,
    eval_rounds: Annotated[
        int, typer.Option(help="Play every so many rounds and keep the best weights by mean return; 0 does not.", min=0)
    ] = 0,
    eval_episodes: EvalEpisodes = 128,
    env: Env = None,
    generation: Generation = "model",
    seed: Seed = 0,
    report_to: ReportTo = "none",
    push_to_hub: PushToHub = None,
    private: Private = False,
    resume: Resume = True,
    overwrite: Overwrite = False,
) -> None:
    """Multi-turn PPO: learn from episodes that the policy plays itself."""
    options = locals()
    from trainers.ppo_training import PPORun, train_ppo  # torch takes seconds, which --help need not wait for

    around = {name: options.pop(name) for name in (*AROUND, "generation")}
    folder, source = options.pop("output"), options.pop("dataset")
    result = train_ppo(PPORun(source=source, **options), folder, **around)
    tell(result, push_to_hub, task)


@online.command(
    name="online-bc",
    epilog="Example: lmrl train online-bc --task maze --model maze-bc --filter top:30 --output maze-online-bc",
)
def online_bc(
    task: Task,
    output: Output,
    init: Annotated[
        str, typer.Option(*INIT, help="The policy to begin with, as from `lmrl train bc`: folder or repository.")
    ],
    rounds: Annotated[int, typer.Option(help="Rounds of playing and learning.", min=1)] = 20,
    rollouts: Annotated[int, typer.Option(help="Episodes of a round, of all processes together.", min=1)] = 128,
    slots: Annotated[int, typer.Option(help="Episodes at the same time, in each process.", min=1)] = 64,
    filter: Annotated[
        str,
        typer.Option(help="Which episodes to imitate: success, top:30 (percent, among equal starts), top-all:30."),
    ] = "top:30",
    buffer_rounds: Annotated[int, typer.Option(help="Choose among so many last rounds; 0 is all.", min=0)] = 1,
    steps_per_round: Annotated[int, typer.Option(help="Gradient steps after each round's play.", min=1)] = 16,
    batch_size: Annotated[int, typer.Option(help="Sequences per step, of all processes together.", min=1)] = 32,
    accumulation: Accumulation = 1,
    lr: Rate = 1e-5,
    schedule: Schedule = "constant",
    max_grad_norm: MaxGradNorm = 1.0,
    dataset: Annotated[
        str | None, typer.Option(help="Imitate its episodes beside: folder, or dataset on the Hub.")
    ] = None,
    config: Config = None,
    revision: Revision = None,
    offline_share: Annotated[float, typer.Option(help="Share of each batch that is its episodes.", min=0)] = 0.0,
    temperature: Annotated[float, typer.Option(help="Of sampling.")] = 1.0,
    generation: Generation = "model",
    response_length: Annotated[int | None, typer.Option(help="Most tokens of an action.", min=1)] = None,
    max_episode_tokens: Annotated[
        int | None, typer.Option(help="Most tokens said in an episode, which is cut then.", min=1)
    ] = None,
    rendering: Rendering = None,
    max_length: MaxLength = None,
    lora_rank: LoraRank = None,
    lora_alpha: LoraAlpha = None,
    lora_targets: LoraTargets = None,
    save_rounds: Annotated[int, typer.Option(help="Rounds between checkpoints.", min=1)] = 1,
    eval_rounds: Annotated[
        int, typer.Option(help="Play every so many rounds and keep the best weights by mean return; 0 does not.", min=0)
    ] = 0,
    eval_episodes: EvalEpisodes = 128,
    env: Env = None,
    seed: Seed = 0,
    report_to: ReportTo = "none",
    push_to_hub: PushToHub = None,
    private: Private = False,
    resume: Resume = True,
    overwrite: Overwrite = False,
) -> None:
    """Online filtered behaviour cloning: imitate the best of one's own episodes, in rounds."""
    options = locals()
    from trainers.online_bc_training import OnlineBCRun, train_online_bc  # torch takes seconds, as above

    around = {name: options.pop(name) for name in (*AROUND, "generation")}
    folder, source = options.pop("output"), options.pop("dataset")
    result = train_online_bc(OnlineBCRun(source=source, **options), folder, **around)
    tell(result, push_to_hub, task)


@online.command(
    name="online-ilql",
    epilog="Example: lmrl train online-ilql --task maze --model maze-ilql --beta 64 --output maze-online-ilql",
)
def online_ilql(
    task: Task,
    output: Output,
    init: Annotated[
        str, typer.Option(*INIT, help="A behaviour policy, or an ILQL policy to go on from: folder or repository.")
    ],
    trunk: Annotated[
        str | None, typer.Option(help="Values from nothing: tiny or small (random); the behaviour policy's by default.")
    ] = None,
    dataset: Source = None,
    config: Config = None,
    revision: Revision = None,
    rounds: Annotated[int, typer.Option(help="Rounds of playing and learning.", min=1)] = 20,
    rollouts: Annotated[int, typer.Option(help="Episodes of a round, of all processes together.", min=1)] = 128,
    slots: Annotated[int, typer.Option(help="Episodes at the same time, in each process.", min=1)] = 64,
    steps_per_round: Annotated[int, typer.Option(help="Gradient steps after each round's play.", min=1)] = 64,
    offline_steps: Annotated[int, typer.Option(help="Steps on the dataset alone, before the first round.", min=0)] = 0,
    batch_size: Annotated[int, typer.Option(help="Sequences per step, of all processes together.", min=1)] = 128,
    online_share: Annotated[float, typer.Option(help="Share of a batch that is own episodes.", min=0, max=1)] = 0.5,
    buffer_rounds: Annotated[int, typer.Option(help="Own episodes are of so many last rounds; 0 is all.", min=0)] = 0,
    accumulation: Accumulation = 1,
    lr: Rate = 1e-4,
    schedule: Schedule = "constant",
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
    temperature: Annotated[float, typer.Option(help="Of sampling.")] = 1.0,
    response_length: Annotated[int | None, typer.Option(help="Most tokens of an action.", min=1)] = None,
    max_episode_tokens: Annotated[
        int | None, typer.Option(help="Most tokens said in an episode, which is cut then.", min=1)
    ] = None,
    rendering: Rendering = None,
    max_length: MaxLength = None,
    save_rounds: Annotated[int, typer.Option(help="Rounds between checkpoints.", min=1)] = 1,
    eval_rounds: Annotated[
        int, typer.Option(help="Play every so many rounds and keep the best weights by mean return; 0 does not.", min=0)
    ] = 0,
    eval_episodes: EvalEpisodes = 128,
    env: Env = None,
    seed: Seed = 0,
    report_to: ReportTo = "none",
    push_to_hub: PushToHub = None,
    private: Private = False,
    resume: Resume = True,
    overwrite: Overwrite = False,
) -> None:
    """ILQL that also plays: learn values from a dataset and from one's own episodes, in rounds."""
    options = locals()
    from trainers.online_ilql_training import OnlineILQLRun, train_online_ilql  # torch takes seconds, as above

    around = {name: options.pop(name) for name in AROUND}
    folder, source = options.pop("output"), options.pop("dataset") or f"lmrl/{task}"
    result = train_online_ilql(OnlineILQLRun(source=source, **options), folder, **around)
    tell(result, push_to_hub, task)


@online.command(
    epilog="Example: lmrl train grpo --task maze --model maze-bc --episodes 64 --lr 1e-6 --output maze-grpo. Any field "
    "of TRL's GRPOConfig: --option scale_rewards=none --option epsilon_high=0.28"
)
def grpo(
    task: Task,
    output: Output,
    init: Annotated[
        str, typer.Option(*INIT, help="The policy to begin with, as from `lmrl train bc`: folder or repository.")
    ],
    steps: Annotated[int, typer.Option(help="Gradient steps.", min=1)] = 100,
    episodes: Annotated[int, typer.Option(help="Episodes of a step and process.", min=2)] = 64,
    num_generations: Annotated[int, typer.Option(help="Episodes of one seed, a group.", min=2)] = 8,
    lr: Rate = 1e-6,
    rows_per_episode: Annotated[
        int, typer.Option(help="Sequences of an episode to learn from, where it makes several (Maze: turns).", min=1)
    ] = 1,
    beta: Annotated[float, typer.Option(help="Weight of the divergence from the first policy.", min=0)] = 0.0,
    temperature: Annotated[float, typer.Option(help="Of sampling.")] = 1.0,
    starts: Annotated[int, typer.Option(help="Episodes of the train split that groups play.", min=1)] = 10_000,
    max_completion_length: Annotated[
        int, typer.Option(help="Most tokens from an episode's first action on; it is cut then.", min=2)
    ] = 1024,
    response_length: Annotated[int | None, typer.Option(help="Most tokens of an action.", min=1)] = None,
    slots: Annotated[int | None, typer.Option(help="Episodes at the same time; by default all.", min=1)] = None,
    rendering: Rendering = None,
    max_length: MaxLength = None,
    lora_rank: LoraRank = None,
    lora_alpha: LoraAlpha = None,
    lora_targets: LoraTargets = None,
    option: Annotated[
        list[str] | None, typer.Option(help="A field of TRL's GRPOConfig, as NAME=VALUE; may be repeated.")
    ] = None,
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
    """GRPO by TRL: learn from groups of episodes that the policy plays itself."""
    options = locals()
    from trainers.grpo import GRPORun, train_grpo  # torch takes seconds, which --help need not wait for

    around = {name: options.pop(name) for name in AROUND}
    folder, words = options.pop("output"), options.pop("option") or ()
    result = train_grpo(GRPORun(option=tuple(words), **options), folder, **around)
    tell(result, push_to_hub, task)
