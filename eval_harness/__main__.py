"""`python -m eval_harness` is `lmrl eval`; `torchrun -m eval_harness` and `accelerate launch -m eval_harness` run it.

Each process plays its share of the episodes.
"""

from env_servers.cli import run
from eval_harness.cli import eval_app

if __name__ == "__main__":
    run(eval_app)
