"""`python -m trainers` is `lmrl train`; `torchrun -m trainers` and `accelerate launch -m trainers` run it."""

import sys

from env_servers.cli import run
from trainers.cli import app

if __name__ == "__main__":
    try:
        run(app)
    finally:
        # A process that leaves while its threads still talk to the others can be aborted; so it takes its leave.
        distributed = sys.modules.get("torch.distributed")
        if distributed is not None and distributed.is_available() and distributed.is_initialized():
            distributed.destroy_process_group()
