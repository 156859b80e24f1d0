"""A learning step of AgileRL's ILQL at the same shape; `ilql_step.py --against-agilerl` runs it.

It needs only `agilerl` and what that imports, in an environment of its own, since its pins are not this package's:

    python -m venv other && other/bin/pip install agilerl
    python benchmarks/ilql_step.py --against-agilerl --agilerl-python other/bin/python

The step is `ILQL.get_loss`, AdamW and `soft_update` on a batch that its own dataset collates: as many sequences,
tokens, action tokens, layers, width and vocabulary as in `ilql_step.py`; no policy loss, so that the policy's trunk
does not run; no dropout. It does more than that step: AgileRL puts its language-model head on all positions, computes
its margin and policy losses at weight 0 too, and its `own` heads have two hidden layers of twice the width. With
`equal`, heads have one of the width.
"""

from __future__ import annotations

import argparse
import json
from typing import Any

from ilql_step import SUPPORT, action_places, timed


def make_agent(arguments: argparse.Namespace) -> Any:
    """An `ILQL` with a dataset that has a size of vocabulary and nothing else."""
    import torch
    from agilerl.algorithms.ilql import ILQL
    from agilerl.data.rl_data import ConstantTokenReward, List_RL_Dataset
    from agilerl.data.tokenizer import Tokenizer
    from agilerl.modules.mlp import EvolvableMLP

    class NoTokenizer(Tokenizer):
        """Six special tokens, which the batch does not have."""

        def num_tokens(self) -> int:
            return int(arguments.vocabulary)

        def encode(self, *_: Any, **__: Any) -> Any:
            raise NotImplementedError

        decode = id_to_token = token_to_id = get_vocab = encode

    class NoData(List_RL_Dataset):
        def size(self) -> int:
            return 0

        def get_item(self, idx: int) -> Any:
            raise NotImplementedError

    torch.manual_seed(0)
    special = [arguments.vocabulary - 1 - number for number in range(6)]
    shape = {
        "arch": "gpt", "vocab_size": arguments.vocabulary, "n_layer": arguments.layers, "n_embd": arguments.width,
        "n_head": arguments.width // 64, "dim_feedfwd": 4 * arguments.width, "block_size": max(1024, arguments.tokens),
        "activation": "GELU", "dropout": 0.0, "layer_norm_eps": 1e-5, "min_layers": 1, "max_layers": 64, "bias": True,
    }  # fmt: skip
    agent = ILQL(NoData(NoTokenizer(*special), ConstantTokenReward(), None), shape, lr=1e-4, tau=0.7)
    if arguments.variant == "equal":
        for name in ("v", "q", "q2", "target_q", "target_q2", "pi"):
            outputs = 1 if name == "v" else arguments.vocabulary
            head = EvolvableMLP(num_inputs=arguments.width, num_outputs=outputs, hidden_size=[arguments.width])
            setattr(agent, name, head)
        agent.target_q.load_state_dict(agent.q.state_dict())
        agent.target_q2.load_state_dict(agent.q2.state_dict())
        agent.optimizer = torch.optim.AdamW(agent.parameters(), lr=agent.lr, weight_decay=agent.weight_decay)
    return agent


def measure(arguments: argparse.Namespace) -> dict[str, float]:
    """Steps in this process, see `ilql_step.timed`."""
    import torch
    from agilerl.data.rl_data import DataPoint

    torch.set_num_threads(arguments.threads)
    agent = make_agent(arguments)
    states = [place - 1 for place in action_places(arguments.tokens)]
    rows = [
        DataPoint(
            raw_str="", tokens=torch.randint(SUPPORT, (arguments.tokens,)).tolist(),
            state_idxs=[*states, arguments.tokens - 1], action_idxs=states,
            rewards=torch.randn(len(states)).tolist(), terminals=[*([0] * len(states)), 1],
            utterance_state_idxs=[], utterance_action_idxs=[], utterance_rewards=[], utterance_terminals=[],
        )
        for _ in range(arguments.batch)
    ]  # fmt: skip
    batch = agent.prepare_inputs(rows)

    def step() -> float:
        agent.optimizer.zero_grad()
        with torch.autocast("cpu", torch.bfloat16, enabled=arguments.bf16):
            loss, _, _ = agent.get_loss(batch, v_loss_weight=1.0, q_loss_weight=1.0, cql_loss_weight=0.01)
        loss.backward()
        agent.optimizer.step()
        agent.soft_update()
        return float(loss.item())

    return {**timed(step, arguments.steps), "tokens": arguments.batch * arguments.tokens}


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--measure", required=True, help="what ilql_step.py gives")
    print(json.dumps(measure(argparse.Namespace(**json.loads(parser.parse_args().measure)))))
