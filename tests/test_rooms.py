"""The rules of the house: which room may import which, what the light rooms never import, what README lists."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
ROOMS = ["env_servers", "dataset_cards", "hub_datasets", "trainers", "eval_harness"]
HEAVY = {
    "torch", "transformers", "datasets", "trl", "accelerate", "evaluate", "huggingface_hub", "sentence_transformers",
}  # fmt: skip
# Inside a room a module imports only modules before it. Modules not listed are leaves or command lines.
ORDER = {
    "env_servers": [
        "trajectory",
        "seeding",
        "scores",
        "task",
        "partners",
        "prompts",
        "api_partner",
        "policy",
        "engines",
        "tasks",
        "extraction",
        "play",
        "terminal",
        "wire",
        "addresses",
        "connections",
        "pool",
        "client",
        "executor",
        "metrics",
        "rooms",
        "sessions",
        "openenv_adapter",
        "frames",
        "doors",
        "server",
        "processes",
        "space",
        "cli",
        "serve",
    ],
    "dataset_cards": ["figures", "render"],
    "trainers": [
        "chat",
        "tokens",
        "sequences",
        "fused",
        "losses",
        "ppo_losses",
        "heads",
        "transitions",
        "adapters",
        "sharding",
        "values",
        "actor_critic",
        "gpt2",
        "generation",
        "policy",
        "generators",
        "value_policy",
        "rollouts",
        "alarms",
        "online",
        "scratch",
        "filters",
        "curves",
        "load",
        "model_partner",
        "card",
        "runs",
        "finish",
        "monitor",
        "rounds",
        "bc",
        "ilql",
        "mc",
        "value_training",
        "ppo_rows",
        "ppo",
        "ppo_training",
        "online_bc",
        "online_bc_training",
        "online_ilql",
        "online_ilql_training",
        "grpo",
        "options",
        "online_cli",
        "cli",
        "__main__",
    ],
    "eval_harness": [
        "extracting",
        "models",
        "log",
        "statistics",
        "score",
        "comparison",
        "sections",
        "run",
        "merge",
        "launch",
        "plots",
        "report",
        "report_page",
        "results",
        "push",
        "lmrl_score",
        "inspect_tasks",
        "eval_suites",
        "suites",
        "reproduce",
        "demo",
        "cli",
        "__main__",
    ],
    "hub_datasets": [
        "rows",
        "journal",
        "hub",
        "load",
        "recording",
        "generators",
        "importers",
        "manifest",
        "replay",
        "plan",
        "shards",
        "build",
        "served",
        "interactions",
        "imports",
        "served_data",
        "publish",
        "spaces",
        "verify",
        "cli",
    ],
}
STANDARD = set(sys.stdlib_module_names)


def modules(room: str) -> list[Path]:
    return sorted(path for path in (ROOT / room).rglob("*.py"))


def imports(path: Path) -> set[str]:
    """Full names of all imported modules, those inside functions and under TYPE_CHECKING included."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: imports are absolute"
            found.add(node.module or "")
    return found


def runtime_imports(path: Path) -> set[str]:
    """Like `imports`, without those for type checkers alone."""
    tree = ast.parse(path.read_text())
    for node in ast.walk(tree):
        if isinstance(node, ast.If) and isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING":
            node.body = [ast.Pass()]
    found = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            found.add(node.module or "")
    return found


@pytest.mark.parametrize("room", ROOMS)
def test_a_room_imports_only_rooms_to_its_left(room: str) -> None:
    allowed = set(ROOMS[: ROOMS.index(room) + 1])
    wrong = [
        f"{path.relative_to(ROOT)} imports {name}"
        for path in modules(room)
        for name in imports(path)
        if name.partition(".")[0] in set(ROOMS) - allowed
    ]
    assert wrong == []


@pytest.mark.parametrize("room", ORDER)
def test_inside_a_room_imports_point_upwards(room: str) -> None:
    order = ORDER[room]
    wrong = []
    for path in modules(room):
        name = path.relative_to(ROOT / room).parts[0].removesuffix(".py")
        if name == "__init__":
            continue
        assert name in order, f"{room}/{name} has no place in tests/test_rooms.py: ORDER"
        for imported in runtime_imports(path):
            parts = imported.split(".")
            if parts[0] == room and len(parts) > 1 and order.index(parts[1]) > order.index(name):
                wrong.append(f"{path.relative_to(ROOT)} imports {imported}, which stands below it")
    assert wrong == []


@pytest.mark.parametrize("room", ["env_servers", "dataset_cards"])
def test_light_rooms_never_import_the_heavy_packages(room: str) -> None:
    wrong = [f"{path}: {name}" for path in modules(room) for name in imports(path) if name.partition(".")[0] in HEAVY]
    assert wrong == []


def test_env_servers_needs_little_besides_the_standard_library() -> None:
    """NumPy for tables, python-chess for the rules of chess; the few others are each in the files that are theirs."""
    allowed, more = (
        STANDARD | {"env_servers", "numpy", "chess"},
        {
            "cli.py": {"typer", "rich"},
            "api_partner.py": {"openai"},
            "serve.py": {"typer"},
            "server.py": {"fastapi", "starlette"},
            "frames.py": {"starlette"},
            "doors.py": {"starlette"},
            "processes.py": {"uvicorn"},
            "connections.py": {"websockets"},
            "openenv_adapter.py": {"openenv", "pydantic"},
        },
    )
    wrong = [
        f"{path}: {name}"
        for path in modules("env_servers")
        for name in imports(path)
        if name.partition(".")[0] not in allowed | more.get(path.name, set())
    ]
    assert wrong == []


def test_importing_the_command_line_loads_nothing_heavy() -> None:
    code = (
        "import sys, env_servers.cli as c, importlib\n"
        "for target in c.ROOMS.values(): importlib.import_module(target.partition(':')[0])\n"
        f"print(sorted({HEAVY | {'openai'}!r} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_readme_lists_every_module() -> None:
    readme = (ROOT / "README.md").read_text()
    missing = [
        str(path.relative_to(ROOT))
        for room in [*ROOMS, "benchmarks"]
        for path in modules(room)
        if path.name != "__init__.py" and path.name not in readme
    ]
    assert missing == []
