"""`lmrl serve --space`: a folder that is a Hugging Face docker Space, or any docker image, which serves environments.

It carries this very package as a wheel, and the versions of all others as they are here, so that what runs there is
what was tried here, also when it is built again in a year. The wheel is written by hand, which takes no build tools
and gives the same bytes for the same files.
"""

from __future__ import annotations

import base64
import hashlib
import importlib.util
import json
import os
import re
import shlex
import string
import sys
import zipfile
from collections.abc import Iterable, Mapping, Sequence
from importlib import resources
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path
from typing import Any

from env_servers.partners import FALLBACK, FALLBACK_OPTIONS, KNOWLEDGE
from env_servers.tasks import TASKS, load_task

PORT = 8000  # openenv's, and that of `lmrl serve`; Spaces take any by `app_port`
DEBIAN = "trixie"
SESSIONS_PER_CLIENT = 256
TEMPLATES = ("README.md", "Dockerfile", "openenv.yaml")
# Packages that are imported, as in setup.cfg's extras.
ALWAYS = ("numpy", "typer", "rich", "fastapi", "uvicorn", "websockets")
FASTER = ("uvloop", "httptools")  # which uvicorn takes where they are installed
CHESS = ("chess",)
OF_PARTNERS: Mapping[str, Sequence[str]] = {
    "replay": ("datasets", "huggingface_hub", "pyarrow", "jinja2", "matplotlib", "pyyaml"),
    "openai": ("openai",),
}
STOCKFISH = "stockfish"  # opponent of the chess tasks, and Debian's package
ENGINE = (
    "RUN apt-get update && apt-get install --yes --no-install-recommends stockfish && rm -rf /var/lib/apt/lists/*\n"
)
MADE = (1980, 1, 1, 0, 0, 0)  # time of all files in the wheel, so that equal files give equal wheels


def write_space(folder: Path, served: Mapping[str, Mapping[str, Any]], words: Sequence[str]) -> None:
    """Write the folder.

    Args:
        folder: Is made; files of an earlier call are replaced, others are left alone.
        served: Options of the environment, for each task that is served.
        words: Further words of `lmrl serve`, as they are to stand on its command line there.

    Raises:
        ValueError: Something that is served is not to be had there: a task of another package, a partner that is a
            model, a file of this machine.
        FileExistsError: The folder holds something else.
        ModuleNotFoundError: As in `pinned` and `write_wheel`.
    """
    needed = _needed(served)
    if folder.exists() and any(folder.iterdir()) and not (folder / "Dockerfile").exists():
        raise FileExistsError(f"{folder} holds something else; give a new folder, or one that --space wrote")
    folder.mkdir(parents=True, exist_ok=True)
    wheel, pins = write_wheel(folder), pinned(needed)
    for old in folder.glob("lmrl-*.whl"):
        if old != wheel:
            old.unlink()
    _write(folder / "requirements.txt", "\n".join([f"./{wheel.name}", *pins]) + "\n")
    limit = [] if "--max-sessions-per-client" in words else ["--max-sessions-per-client", str(SESSIONS_PER_CLIENT)]
    command = ["lmrl", "serve", "--tasks", ",".join(served), "--host", "0.0.0.0", "--port", str(PORT)]
    # Everything comes through the Hub's proxy, and who may come is said by a token in the environment, or by nobody.
    command += ["--insecure", "--trust-proxy", *limit, *words]
    values = {**_about(served), "version": wheel.name.split("-")[1], "wheel": wheel.name, "port": PORT}
    values |= {
        "python": f"{sys.version_info.major}.{sys.version_info.minor}",
        "debian": DEBIAN,
        "engine": ENGINE if any(_has_engine(task, options) for task, options in served.items()) else "",
        "command": json.dumps(command),
        "shown": shlex.join(command),
        "per_client": command[command.index("--max-sessions-per-client") + 1],
        "sha256": hashlib.sha256(wheel.read_bytes()).hexdigest(),
    }
    for name in TEMPLATES:
        template = (resources.files("env_servers") / "space_files" / name).read_text(encoding="utf-8")
        _write(folder / name, string.Template(template).substitute(values))


def _about(served: Mapping[str, Mapping[str, Any]]) -> dict[str, str]:
    """What README and openenv.yaml say of the tasks."""
    specs = [load_task(task).spec for task in served]
    cells = [
        (f"`{spec.id}`", spec.version, spec.summary, f"{spec.max_turns}", f"{spec.min_return:g} to {spec.max_return:g}")
        for spec in specs
    ]
    drawn = [spec.id for spec in specs if not spec.repeatable.items() <= served[spec.id].items()]
    partners = {kind for options in served.values() for kind in _partners(options)}
    title = f"LMRL: {specs[0].title}" if len(specs) == 1 else "LMRL environments"
    return {
        "title": json.dumps(title),
        "heading": title,
        "name": "lmrl" if len(specs) > 1 else f"lmrl_{specs[0].id}",
        "task": specs[0].id,
        "table": "\n".join(f"| {' | '.join(row)} |" for row in cells),
        "repeatable": f" (not in {', '.join(drawn)}, whose opponent draws for itself)" if drawn else "",
        "lowest": f"{min(spec.min_return for spec in specs):.1f}",
        "highest": f"{max(spec.max_return for spec in specs):.1f}",
        "network": "public" if partners else "no-network",
        "key": "Its partner is behind an endpoint: the key is the secret `OPENAI_API_KEY`.\n\n"
        if "openai" in partners
        else "",
    }


def _needed(served: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """The packages that a Space has to install.

    Raises:
        ValueError: Something is not to be had there.
    """
    needed = [*ALWAYS, *FASTER]
    for task, options in served.items():
        if task not in TASKS:
            raise ValueError(f"task {task} is of another package, which the Space would lack; leave it out of --tasks")
        needed += CHESS if task.startswith("chess") else ()
        for kind in _partners(options):
            if kind not in OF_PARTNERS:
                raise ValueError(
                    f"{task}: a partner of the kind {kind!r} needs more than such a Space has; allowed: {KNOWLEDGE}, "
                    f"{', '.join(f'{name}:...' for name in OF_PARTNERS)}"
                )
            needed += OF_PARTNERS[kind]
        for value in _texts(options):
            of_kind = value.partition(":")[2].partition("@")[0]  # as in replay:<file>
            if os.path.exists(of_kind) or ("/" in value and os.path.exists(value)):
                raise ValueError(f"{task}: {value} is of this machine, and the Space would lack it")
    return list(dict.fromkeys(needed))


def _partners(options: Mapping[str, Any]) -> list[str]:
    """Kinds of the partners that options name, the tasks' own left out."""
    partner = options.get("partner", KNOWLEDGE)
    more = options.get("partner_options") or {}
    kinds = [] if partner == KNOWLEDGE else [str(partner).partition(":")[0]]
    if FALLBACK in more:
        kinds += _partners({"partner": more[FALLBACK], "partner_options": more.get(FALLBACK_OPTIONS)})
    return kinds


def _has_engine(task: str, options: Mapping[str, Any]) -> bool:
    return task.startswith("chess") and options.get("opponent", STOCKFISH) == STOCKFISH


def _texts(value: Any) -> Iterable[str]:
    """All texts within options."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping | list | tuple):
        for one in value.values() if isinstance(value, Mapping) else value:
            yield from _texts(one)


def pinned(packages: Iterable[str]) -> list[str]:
    """Requirements of these packages and of all that they need, at the versions that are installed here.

    What is not installed is left out: it is for other systems, or only makes things faster.

    Raises:
        ModuleNotFoundError: One of `ALWAYS` is missing; its `name` is that of the package.
    """
    found: dict[str, str] = {}
    todo = list(packages)
    while todo:
        name = re.sub(r"[-_.]+", "-", todo.pop()).lower()
        if name in found:
            continue
        try:
            installed = distribution(name)
        except PackageNotFoundError:
            if name in ALWAYS:
                raise ModuleNotFoundError(f"{name} is not installed", name=name) from None
            continue
        found[name] = installed.version
        for line in installed.requires or ():
            wanted, _, marker = line.partition(";")
            if "extra" not in marker:
                todo.append(re.split(r"[^\w.-]", wanted.strip(), maxsplit=1)[0])
    return [f"{name}=={version}" for name, version in sorted(found.items())]


def write_wheel(folder: Path) -> Path:
    """This package, as it is here, as a wheel (PEP 427).

    Raises:
        ModuleNotFoundError: It is not installed, not even as an editable one, so it has no version.
    """
    own = distribution("lmrl")
    about = f"lmrl-{own.version}.dist-info"
    files: dict[str, bytes] = {}
    for room in (own.read_text("top_level.txt") or "env_servers").split():
        spec = importlib.util.find_spec(room)
        assert spec is not None and spec.submodule_search_locations, f"{room} is a package of lmrl"
        root = Path(next(iter(spec.submodule_search_locations)))
        for path in sorted(root.rglob("*")):
            parts = path.relative_to(root.parent).parts
            if path.is_file() and not any(part == "__pycache__" or part.startswith(".") for part in parts):
                files["/".join(parts)] = path.read_bytes()
    metadata = ["Metadata-Version: 2.1", "Name: lmrl", f"Version: {own.version}", "License: MIT"]
    metadata += ["Requires-Python: >=3.11", *(f"Requires-Dist: {name}" for name in ALWAYS)]
    files[f"{about}/METADATA"] = ("\n".join(metadata) + "\n").encode()
    files[f"{about}/WHEEL"] = b"Wheel-Version: 1.0\nGenerator: lmrl\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
    files[f"{about}/entry_points.txt"] = b"[console_scripts]\nlmrl = env_servers.cli:main\n"
    if licence := own.read_text("licenses/LICENSE"):
        files[f"{about}/LICENSE"] = licence.encode()
    record = [f"{name},sha256={_digest(content)},{len(content)}" for name, content in files.items()]
    files[f"{about}/RECORD"] = ("\n".join([*record, f"{about}/RECORD,,"]) + "\n").encode()
    path = folder / f"lmrl-{own.version}-py3-none-any.whl"
    beside = path.with_suffix(".part")
    with zipfile.ZipFile(beside, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in files.items():
            entry = zipfile.ZipInfo(name, MADE)
            entry.external_attr, entry.compress_type = 0o644 << 16, zipfile.ZIP_DEFLATED
            archive.writestr(entry, content)
    return beside.replace(path)


def _digest(content: bytes) -> str:
    return base64.urlsafe_b64encode(hashlib.sha256(content).digest()).rstrip(b"=").decode()


def _write(path: Path, text: str) -> None:
    beside = path.with_name(path.name + ".part")
    beside.write_text(text, encoding="utf-8")
    beside.replace(path)
