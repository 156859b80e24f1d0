"""The `lmrl` command. Every sub-command loads its room only when it is called, so `--help` is quick.

`lmrl tasks` and `lmrl play` live here; the other rooms bring their own `cli` module, named below as text.
"""

from __future__ import annotations

import difflib
import importlib
import sys
from typing import Annotated, Any, NoReturn

import click
import typer
from typer.core import TyperGroup


class Command:
    """Where a sub-command is found, and the line that `lmrl --help` prints for it."""

    def __init__(self, target: str, help: str) -> None:
        self.module, self.name = target.split(":")
        self.help = help
