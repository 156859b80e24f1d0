"""`lmrl train`: one sub-command per algorithm."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

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
    task: Annotated[str, typer.Option(help="Task id, such as maze.")],
    output: Annotated[Path, typer.Option(help="Folder of the run; the same command again resumes it.")],
    dataset: Annotated[
        str | None, typer.Option(help="Folder, or dataset on the Hub; by default lmrl/<task>.", show_default=False)
    ] = None,
    revision: Annotated[str | None, typer.Option(help="Branch, tag or commit of the dataset.")] = None,
    init: Annotated[
        str, typer.Option(help="First weights: tiny or small (random GPT-2), a folder, or a model on the Hub.")
    ] = "tiny",
    filter: Annotated[
        str | None,
        typer.Option(
            help="Learn from the best episodes alone: success, top:10 (percent, among equal starts), top-all:10."
        ),
    ] = None,
    rendering: Annotated[
        str | None, typer.Option(help="plain or chat; by default chat if the model has a chat template.")
    ] = None,
    steps: Annotated[int | None, typer.Option(help="Gradient steps.", min=1)] = None,
    epochs: Annotated[float | None, typer.Option(help="Passes over the data, instead of --steps.", min=0)] = None,
    batch_size: Annotated[int | None, typer.Option(help="Sequences per step and process.", min=1)] = None,
    accumulation: Annotated[int, typer.Option(help="Parts that a batch is computed in, to save memory.", min=1)] = 1,
    lr: Annotated[float | None, typer.Option(help="Peak learning rate.", min=0)] = None,
    max_length: Annotated[int | None, typer.Option(help="Most tokens of a sequence.", min=2)] = None,
    seed: Annotated[int, typer.Option(help="Of first weights and order.")] = 0,
    push_to_hub: Annotated[
        str | None, typer.Option(help="Repository to put the policy into.", metavar="NAMESPACE/NAME")
    ] = None,
    private: Annotated[bool, typer.Option("--private", help="Make a new repository private.")] = False,
    resume: Annotated[bool, typer.Option(help="Go on where the same command was interrupted.")] = True,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Delete another run in the folder.")] = False,
) -> None:
    """Behaviour cloning, or with --filter filtered behaviour cloning."""
    from trainers.bc import train_bc  # torch takes seconds, which --help need not wait for

    result = train_bc(
        task,
        dataset or f"lmrl/{task}",
        output,
        revision=revision,
        init=init,
        rule=filter,
        rendering=rendering,
        steps=steps,
        epochs=epochs,
        batch_size=batch_size,
        accumulation=accumulation,
        lr=lr,
        max_length=max_length,
        seed=seed,
        push_to_hub=push_to_hub,
        private=private,
        resume=resume,
        overwrite=overwrite,
    )
    if not result.main:
        return
    typer.echo(f"policy saved in {result.folder} (loss {result.loss:.4f}, {result.seconds:.0f} s)")
    if result.revision is not None:
        typer.echo(f"pushed to {push_to_hub}, revision {result.revision}")
    typer.echo(f"evaluate it: lmrl eval --model {push_to_hub or result.folder} --task {task}")
