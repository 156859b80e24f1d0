"""Options that several sub-commands of `lmrl train` share, and how each of them ends."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from trainers.runs import TrainResult

Task = Annotated[str, typer.Option(help="Task id, such as maze.")]
Output = Annotated[Path, typer.Option(help="Folder of the run; the same command again resumes it.")]
INIT = ("--init", "--model")
Behavior = Annotated[
    str, typer.Option(*INIT, help="The behaviour policy, as from `lmrl train bc`: folder or repository.")
]
Trunk = Annotated[
    str | None,
    typer.Option(help="What the value trunk begins as: as --init, a value policy, or tiny, small (random)."),
]
Source = Annotated[
    str | None, typer.Option(help="Folder, or dataset on the Hub; by default lmrl/<task>.", show_default=False)
]
Config = Annotated[
    str | None,
    typer.Option(help="Configuration of the dataset; without, its default one: episodes, or what was imported."),
]
Revision = Annotated[str | None, typer.Option(help="Branch, tag or commit of the dataset.")]
Rendering = Annotated[str | None, typer.Option(help="plain or chat; by default chat if the model has a chat template.")]
Steps = Annotated[int | None, typer.Option(help="Gradient steps.", min=1)]
Epochs = Annotated[float, typer.Option(help="Passes over the data, without --steps.", min=0)]
BatchSize = Annotated[int, typer.Option(help="Sequences per step and process.", min=1)]
Accumulation = Annotated[int, typer.Option(help="Parts that a batch is computed in, to save memory.", min=1)]
Rate = Annotated[float, typer.Option(help="Learning rate.", min=0)]
Schedule = Annotated[str, typer.Option(help="Of the learning rate: constant, linear or cosine to 0.")]
WarmupSteps = Annotated[float, typer.Option(help="Steps of linear warm-up; below 1, share of all.", min=0)]
AdamBeta2 = Annotated[float, typer.Option(help="Adam's second beta.", min=0, max=1)]
MaxGradNorm = Annotated[float, typer.Option(help="Gradients are cut to this norm.", min=0)]
Memory = Annotated[int | None, typer.Option(help="Turns of the past that the policy reads, if not the task's.", min=0)]
Gamma = Annotated[float, typer.Option(help="Discount factor.")]
Discount = Annotated[str, typer.Option(help="What discounts: each token or each turn.")]
RewardScale = Annotated[float, typer.Option(help="What rewards are multiplied by.")]
CQLWeight = Annotated[float, typer.Option(help="Weight of the conservative term.", min=0)]
Beta = Annotated[float, typer.Option(help="Weight of the values when acting.", min=0)]
LinearHeads = Annotated[bool, typer.Option("--linear-heads", help="One linear layer instead of two with a ReLU.")]
HeadBias = Annotated[float, typer.Option(help="First value of every output of the heads.")]
QVocab = Annotated[str, typer.Option(help="Tokens that Q is learned for: all, or dataset (those of its actions).")]
LoraRank = Annotated[int | None, typer.Option(help="Learn adapters of this rank (LoRA), not all weights.", min=0)]
LoraAlpha = Annotated[float | None, typer.Option(help="Scale of the adapters; by default twice the rank.")]
LoraTargets = Annotated[
    str | None, typer.Option(help="Layers with an adapter: all-linear (the default), or names such as q_proj,v_proj.")
]
MaxLength = Annotated[int | None, typer.Option(help="Most tokens of a sequence.", min=2)]
EvalSteps = Annotated[
    int, typer.Option(help="Play every so many steps and keep the best weights by mean return; 0 does not.", min=0)
]
EvalEpisodes = Annotated[int, typer.Option(help="How many episodes it then plays.", min=1)]
Env = Annotated[
    str | None,
    typer.Option(
        help="Servers (`lmrl serve`) to play them on, such as ws://HOST:PORT; by default here.", metavar="URL"
    ),
]
Generation = Annotated[
    str,
    typer.Option(
        help="Who writes the actions: model, continuous (transformers' continuous batching), or a completions server, "
        "such as http://HOST:PORT/v1 (vLLM; it is sent the weights before each round).",
        metavar="model|continuous|[MODEL@]URL",
    ),
]
ReportTo = Annotated[str, typer.Option(help="none, tensorboard, wandb, trackio; several by commas.")]
Seed = Annotated[int, typer.Option(help="Of first weights and order.")]
PushToHub = Annotated[str | None, typer.Option(help="Repository to put the policy into.", metavar="NAMESPACE/NAME")]
Private = Annotated[bool, typer.Option("--private", help="Make a new repository private.")]
Resume = Annotated[bool, typer.Option(help="Go on where the same command was interrupted.")]
Overwrite = Annotated[bool, typer.Option("--overwrite", help="Delete another run in the folder.")]

# Options that do not change what is learned.
AROUND = ("env", "report_to", "push_to_hub", "private", "resume", "overwrite")


def tell(result: TrainResult, push_to_hub: str | None, task: str) -> None:
    """Where the policy is now, and how it is measured."""
    if not result.main:
        return
    typer.echo(f"policy saved in {result.folder} (loss {result.loss:.4f}, {result.seconds:.0f} s)")
    if result.revision is not None:
        typer.echo(f"pushed to {push_to_hub}, revision {result.revision}")
    typer.echo(f"evaluate it: lmrl eval --model {push_to_hub or result.folder} --task {task}")
