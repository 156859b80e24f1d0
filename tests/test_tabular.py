"""What ILQL and MC returns converge to, on Maze with a model that can hold every value: against search, and by hand."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from datasets import Dataset
from tiny_models import maze_episodes, plain_tokenizer
from torch import Tensor, nn
from transformers import GPT2Config
from transformers.modeling_outputs import BaseModelOutput

from env_servers.tasks import load_task
from env_servers.tasks.maze import MOVES, Maze, grid
from trainers.ilql import ILQLConfig, ILQLModel, ILQLTrainer, ValueConfig, ValueTrainer
from trainers.mc import MCModel
from trainers.tokens import Renderer
from trainers.transitions import Discounting, build_transitions, merge_transitions, transition_collator
from trainers.values import HeadSettings

torch.set_num_threads(1)
TOKENIZER = plain_tokenizer()
RENDERER = Renderer(TOKENIZER, load_task("maze").spec)
EPISODES = maze_episodes("maze", 400)
GRID = grid("double_t")


class Table(nn.Module):
    """A trunk whose hidden state is a vector of its own for each text that was read so far: linear heads on it hold
    any values."""

    _no_split_modules = None
    dtype = torch.float32
    device = torch.device("cpu")

    def __init__(self, rows: Dataset) -> None:
        super().__init__()
        states = {tuple(row["input_ids"][:place]) for row in rows for place in row["places"]}
        states |= {tuple(row["next_prompt"]) for row in rows}
        self.places = {text: number for number, text in enumerate(sorted(states))}
        self.config = GPT2Config(
            vocab_size=len(TOKENIZER), n_embd=len(self.places), bos_token_id=None, eos_token_id=None
        )
        self.known: dict[tuple[int, ...], list[int]] = {}

    def forward(self, input_ids: Tensor, attention_mask: Tensor, use_cache: bool) -> BaseModelOutput:
        numbers = torch.tensor([self.read(tuple(row)) for row in input_ids.tolist()])
        hidden = nn.functional.one_hot(numbers + 1, len(self.places) + 1)[..., 1:].float()
        return BaseModelOutput(last_hidden_state=hidden)

    def read(self, ids: tuple[int, ...]) -> list[int]:
        if ids not in self.known:
            self.known[ids] = [self.places.get(ids[: i + 1], -1) for i in range(len(ids))]
        return self.known[ids]


def merged(gamma: float) -> Dataset:
    """Each distinct row once, so that the error of any of its values shrinks by the same share in a step."""
    rows = build_transitions(EPISODES, RENDERER, Discounting(gamma))
    return merge_transitions(rows, 1000).map(lambda row: {"weight": 1.0})


def settings(rows: Dataset, bias: float) -> HeadSettings:
    said = sorted({row["input_ids"][place] for row in rows for place in row["places"]})
    return HeadSettings(linear=True, bias=bias, token_ids=said)


def learn(make: Any, config: type[ValueConfig], folder: Path, rows: Dataset, **options: Any) -> Any:
    for name, parameter in make.named_parameters():
        if name.endswith("output.bias"):  # shared by all states, so not part of a table
            parameter.requires_grad_(False)
    arguments = config(
        output_dir=str(folder), per_device_train_batch_size=len(rows), logging_steps=100, report_to="none",
        use_cpu=True, disable_tqdm=True, save_strategy="no", max_grad_norm=0.0, optim="sgd",
        learning_rate=0.3 * sum(map(len, rows["places"])), **options,
    )  # fmt: skip
    trainer: type[ValueTrainer] = ILQLTrainer if config is ILQLConfig else ValueTrainer
    done = trainer(
        model=make, args=arguments, train_dataset=rows, data_collator=transition_collator(TOKENIZER.pad_token_id)
    )
    done.train()
    return make.eval()


def hidden(model: Any, cell: tuple[int, int], action: str | None = None) -> Tensor:
    """Before the action's last token, or without an action, at the end of the prompt."""
    ids = RENDERER.prompt_ids([], Maze(start=list(cell)).reset(0))
    if action is not None:
        ids = ids + RENDERER.action_ids(action)[:-1]
    with torch.no_grad():
        return model.trunk(torch.tensor([ids]), None, False).last_hidden_state[0, -1:]


def test_values_are_those_of_the_shortest_way_and_a_wall_costs_one(tmp_path: Path) -> None:
    """Without discount V is minus the moves to come after the first, and a bump is one move more than the right one."""
    rows = merged(1.0)
    model = ILQLModel(Table(rows), settings(rows, -15.0), tau=0.995, cql_weight=0.0)
    learn(model, ILQLConfig, tmp_path, rows, max_steps=400, target_rate=0.5, gamma=1.0)
    exact = {cell: -(GRID.distance[cell] - 1.0) for cell in GRID.starts}
    tolerance = 0.05 * (max(exact.values()) - min(exact.values()))
    end = torch.tensor(RENDERER.action_ids("move left")[-1:])
    for cell, value in exact.items():
        with torch.no_grad():
            assert model.v(hidden(model, cell)).item() == pytest.approx(value, abs=tolerance), cell
            q = {move: model.q1(hidden(model, cell, move), end).item() for move in MOVES}
        best = GRID.shortest_move(cell)
        for move in MOVES:
            if GRID.move(cell, move) == cell:
                assert q[best] - q[move] == pytest.approx(1.0, abs=0.1), (cell, move)


def test_monte_carlo_values_are_the_mean_returns_of_the_data(tmp_path: Path) -> None:
    rows = merged(0.99)
    model = MCModel(Table(rows), settings(rows, -10.0), cql_weight=0.0)
    learn(model, ValueConfig, tmp_path, rows, max_steps=40)
    returns: dict[tuple[str, str], list[float]] = {}
    lengths = {move: len(RENDERER.action_ids(move)) for move in MOVES}
    for episode in EPISODES:
        total = 0.0
        for turn in reversed(episode.turns):
            total = turn.reward + 0.99 * total  # from the action's last token on
            if turn is not episode.turns[-1] or episode.final_observation != "Failure":  # ignored at the limit
                returns.setdefault((turn.observation, turn.action), []).append(total)
            total *= 0.99 ** (lengths[turn.action] - 1)
    end = torch.tensor(RENDERER.action_ids("move left")[-1:])
    for cell in GRID.starts:
        for move in MOVES:
            found = returns.get((Maze(start=list(cell)).reset(0), move))
            if found:
                with torch.no_grad():
                    q = model.q1(hidden(model, cell, move), end).item()
                assert q == pytest.approx(sum(found) / len(found), abs=0.3), (cell, move)
