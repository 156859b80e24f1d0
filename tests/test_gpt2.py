"""GPT-2's step for acting: the logits of transformers' forward, and only for models that are plain GPT-2."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from peft import LoraConfig, get_peft_model
from test_rollouts import talker
from tiny_models import plain_tokenizer
from transformers import DynamicCache, LlamaConfig, LlamaForCausalLM

from env_servers.play import episode_starts, play
from env_servers.tasks import load_task
from trainers.gpt2 import is_plain, last_logits
from trainers.policy import LanguageModelPolicy

torch.set_num_threads(1)
PLAIN = plain_tokenizer()


def model() -> Any:
    return talker(PLAIN).double().eval()


@pytest.mark.parametrize("lengths", [[9, 9, 9], [9, 4, 1]])
def test_logits_are_those_of_transformers(lengths: list[int]) -> None:
    """A prompt, more of it, and tokens one by one, with padding and without."""
    made, generator = model(), torch.Generator().manual_seed(0)
    ids = torch.randint(0, len(PLAIN), (3, 14), generator=generator)
    mask = (torch.arange(14) >= 9 - torch.tensor(lengths)[:, None]).long()
    positions = (mask.cumsum(1) - 1).clamp(min=0)
    ours, theirs, start = DynamicCache(), DynamicCache(), 0
    with torch.inference_mode():
        for stop in (9, 12, 13, 14):
            new = slice(start, stop)
            found = last_logits(made, ids[:, new], mask[:, :stop], positions[:, new], ours)
            expected = made(ids[:, new], attention_mask=mask[:, :stop], position_ids=positions[:, new], cache=theirs)
            assert torch.allclose(found, expected.logits[:, -1], rtol=0, atol=1e-10)
            start = stop
    for one, other in zip(ours.layers, theirs.layers, strict=True):
        real = mask[:, None, :, None].bool()
        assert torch.allclose(one.keys * real, other.keys * real, rtol=0, atol=1e-10)
        assert torch.allclose(one.values * real, other.values * real, rtol=0, atol=1e-10)


def test_other_models_are_not_plain() -> None:
    assert is_plain(model())
    assert not is_plain(model().train())
    assert not is_plain(get_peft_model(model(), LoraConfig(r=2, target_modules=["c_attn"], fan_in_fan_out=True)))
    injected = model()
    get_peft_model(injected, LoraConfig(r=2, target_modules=["c_attn"], fan_in_fan_out=True))
    assert not is_plain(injected)
    for name in ("scale_attn_by_inverse_layer_idx", "reorder_and_upcast_attn"):
        changed = model()
        setattr(changed.config, name, True)
        assert not is_plain(changed)
    wrapped, hooked = model(), model()
    wrapped.forward = wrapped.forward
    hooked.transformer.h[1].mlp.register_forward_hook(lambda *_: None)
    assert not is_plain(wrapped) and not is_plain(hooked)
    sizes = {"hidden_size": 8, "intermediate_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2}
    assert not is_plain(LlamaForCausalLM(LlamaConfig(vocab_size=9, **sizes)).eval())


@pytest.mark.parametrize("task", ["wordle", "maze_po"])
def test_episodes_are_those_that_transformers_plays(task: str) -> None:
    def played(made: LanguageModelPolicy) -> list[Any]:
        starts = episode_starts(task, "train", range(4))
        return list(play(task, made, starts, slots=3, stop=lambda c: "cut" if len(c.history) == 6 else None))

    plain = LanguageModelPolicy(model(), PLAIN, load_task(task).spec, name="m")
    other = LanguageModelPolicy(model(), PLAIN, load_task(task).spec, name="m")
    other.model.forward = other.model.forward
    for one, same in zip(played(plain), played(other), strict=True):
        assert one.trajectory == same.trajectory
        for action, expected in zip(one.actions, same.actions, strict=True):
            assert action.token_ids == expected.token_ids
            assert action.logprobs == pytest.approx(expected.logprobs, abs=1e-9)
    assert plain._plain and not other._plain
