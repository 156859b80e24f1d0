"""`python -m trainers` with weights that FSDP2 really divides, also on CPUs, where accelerate would leave it at DDP.

Started by `accelerate launch --config_file fsdp2.yaml`. `AcceleratorState` heeds FSDP's settings on a machine with
accelerators alone; here it is told what it would decide there. All that follows is accelerate's and PyTorch's own.
"""

from __future__ import annotations

import runpy
from typing import Any

import accelerate.accelerator
from accelerate.state import AcceleratorState, PartialState
from accelerate.utils import DistributedType
from torch.distributed.tensor import DTensor

begin, divide = AcceleratorState.__init__, accelerate.accelerator.fsdp2_prepare_model


def begin_with_parts(self: Any, *args: Any, fsdp_plugin: Any = None, **options: Any) -> None:
    begin(self, *args, fsdp_plugin=fsdp_plugin, **options)
    if fsdp_plugin is not None and self.distributed_type == DistributedType.MULTI_CPU:
        self.distributed_type, self.fsdp_plugin = DistributedType.FSDP, fsdp_plugin
        PartialState._shared_state["distributed_type"] = DistributedType.FSDP


def divide_and_tell(own: Any, model: Any) -> Any:
    model = divide(own, model)
    print("in parts:", all(isinstance(parameter, DTensor) for parameter in model.parameters()), flush=True)
    return model


AcceleratorState.__init__ = begin_with_parts
accelerate.accelerator.fsdp2_prepare_model = divide_and_tell
runpy.run_module("trainers", run_name="__main__")
