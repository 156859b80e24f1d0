"""`stats.json`, which describes one configuration of a dataset: what made it, its files and its numbers.

A folder, or a repository, holds one such file per configuration (`episodes/stats.json`). The card is a function of
them, and publishing and verifying compare against their hashes. Keys:

    format            version of this layout
    config            name of the configuration, also of its folder
    task, task_version, env_kwargs, policy, lmrl_version    what made it
    difference        a sentence on how the data differs from the paper's
    stop_reasons      reasons of the collector to cut an episode, with their meaning
    splits            by split: episodes, files, summary (`scores.Summary`), end_reasons, histogram {edges, counts}
    summary           over all splits
    starts            configuration `tasks`: episodes, files
    reference         by scripted policy: its summary over the first test episodes
    imported          of an imported configuration: files, numbers of records, of malformed and left out ones with the
                      first of them, of episodes without replay by the reason
    served            of a configuration that a server recorded: how many episodes came without a name, how many
                      were there again, how many each policy, partner and set of options has (the most frequent ones;
                      how many others there are), and `local`, options that name a file of the server's machine
    evaluated         of an evaluation's log: `settings`, as words
    dataset_info      the entries of the card's YAML for this configuration and `tasks`
    fingerprint       SHA-256 over the names and hashes of all files

A file is {path, rows, bytes, sha256, num_bytes}, `num_bytes` being its size in memory.

The configuration `interactions` holds what a partner answered instead of episodes. Its manifest has `kind`,
`partners` (name, revision, and the numbers of interactions, recordings, secrets and questions), and of the keys above
format, config, task, task_version, lmrl_version, splits (files alone), dataset_info and fingerprint.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from env_servers.partners import FALLBACK, GUARDED
from env_servers.scores import Summary
from env_servers.tasks import load_task
from hub_datasets.load import STARTS

FORMAT = 1
NAME = "stats.json"

Manifest = Mapping[str, Any]


def read_manifests(folder: Path) -> list[Manifest]:
    """The manifests of all configurations in a folder, `episodes` first, then by name.

    Raises:
        FileNotFoundError: There is none, so it is not a folder that `build` made.
        ValueError: One was written by another version of this layout.
    """
    paths = sorted(folder.glob(f"*/{NAME}"))
    if not paths:
        raise FileNotFoundError(f"{folder} holds no dataset ({NAME} is missing); make one with `lmrl data build`")
    return sort_manifests([check_format(json.loads(path.read_text()), str(path)) for path in paths])


def check_format(manifest: Manifest, where: str) -> Manifest:
    """The manifest itself, if this version of the package can read it."""
    if manifest.get("format") != FORMAT:
        raise ValueError(
            f"{where} has format {manifest.get('format')!r}; this version of lmrl reads {FORMAT}: upgrade lmrl, or "
            "build the dataset again"
        )
    return manifest


def local_options(task: str, env_kwargs: Mapping[str, Any]) -> list[str]:
    """Those of an environment's options, as NAME=VALUE, that name a file or folder of this machine."""
    guarded, found = load_task(task).guarded, dict[str, str]()
    for name, value in env_kwargs.items():
        if isinstance(value, str) and name not in GUARDED and name in guarded and value not in guarded[name]:
            found[name] = value
    partner, options = env_kwargs.get("partner"), env_kwargs.get("partner_options") or {}
    for name, value in (("partner", partner), (FALLBACK, options.get(FALLBACK))):
        kind, _, source = str(value or "").partition(":")
        if kind in ("replay", "model"):
            found[name] = source
    return [
        f"{name}={value}"
        for name, value in found.items()
        if value.startswith(("/", "./", "../", "~")) or Path(value).exists()
    ]


def has_episodes(manifest: Manifest) -> bool:
    """Whether it describes episodes; else a partner's interactions."""
    return "kind" not in manifest


def sort_manifests(manifests: list[Manifest]) -> list[Manifest]:
    """`episodes` first, then by name, interactions last; the first one is the default configuration."""
    return sorted(manifests, key=lambda m: (not has_episodes(m), m["config"] != "episodes", m["config"]))


def files_of(manifest: Manifest) -> list[Mapping[str, Any]]:
    """All files of a manifest, the `tasks` configuration's included."""
    starts = manifest["starts"]["files"] if has_episodes(manifest) else []
    return [*(file for split in manifest["splits"].values() for file in split["files"]), *starts]


def rows_of(manifest: Manifest) -> dict[tuple[str, str], int]:
    """How many rows each configuration and split has, `tasks` included."""
    counts = {
        (manifest["config"], split): sum(file["rows"] for file in part["files"])
        for split, part in manifest["splits"].items()
    }
    if has_episodes(manifest):
        counts[STARTS, "test"] = manifest["starts"]["episodes"]
    return counts


def fingerprint(files: list[Mapping[str, Any]]) -> str:
    """One hash for the content of a configuration."""
    return hashlib.sha256("\n".join(f"{f['path']} {f['sha256']}" for f in files).encode()).hexdigest()


def file_sha256(path: Path) -> str:
    """SHA-256 of a file, the hash by which the Hub stores it."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def as_json(summary: Summary) -> dict[str, Any]:
    """A summary with null for what is undefined (the interval of one episode): JSON has no NaN."""

    def defined(value: float) -> float | None:
        return None if math.isnan(value) else value

    return {
        key: [defined(end) for end in value] if isinstance(value, tuple) else defined(value)
        for key, value in summary._asdict().items()
    }


def write_text(path: Path, text: str) -> None:
    """Write a file beside its place, then rename: a reader sees the old text or the new, never a part."""
    beside = path.with_name(path.name + ".partial")
    beside.write_text(text, encoding="utf-8")
    os.replace(beside, path)


def write_json(path: Path, value: Any) -> None:
    """Like `write_text`, as readable JSON with a fixed order of keys."""
    write_text(path, json.dumps(value, indent=2, sort_keys=True, allow_nan=False) + "\n")
