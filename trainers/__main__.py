"""`python -m trainers` is `lmrl train`; `torchrun -m trainers` and `accelerate launch -m trainers` run it."""

from trainers.cli import app

if __name__ == "__main__":
    app()
