"""The CPU as a platform of verl's. Of verl: `verl.plugin.platform`, the registry of platforms (verl >= 0.9)."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from types import ModuleType
from typing import Any

import torch
from verl.plugin.platform import PlatformBase
from verl.plugin.platform.platform_manager import PlatformRegistry

NAME = "cpu"
"""For `VERL_PLATFORM`."""


def _device_module() -> ModuleType:
    """`torch.cpu`, and beside it what verl asks of `torch.cuda`: there is no memory of a device to measure or free."""
    module = ModuleType("verl_ext_cpu_device")
    module.__dict__.update(torch.cpu.__dict__)
    measured = dict.fromkeys(
        ("memory_allocated", "memory_reserved", "max_memory_allocated", "max_memory_reserved"), lambda *_: 0
    )
    nothing = dict.fromkeys(
        ("empty_cache", "ipc_collect", "reset_peak_memory_stats", "synchronize", "set_device"), lambda *_: None
    )
    module.__dict__.update(
        measured,
        **nothing,
        is_available=lambda: False,  # verl asks before it frees memory or keeps a device's random state
        mem_get_info=lambda *_: (0, 0),
        get_device_name=lambda *_: "CPU",
        manual_seed=torch.manual_seed,
        manual_seed_all=torch.manual_seed,
        get_rng_state=torch.get_rng_state,
        set_rng_state=torch.set_rng_state,
    )
    return module


@PlatformRegistry.register(platform=NAME)
class CpuPlatform(PlatformBase):  # type: ignore[misc]
    """A CPU in the place of a GPU: most of what an accelerator needs comes to nothing."""

    _module = _device_module()

    @property
    def device_name(self) -> str:
        """For `torch.device` and for meshes."""
        return "cpu"

    @property
    def vendor_name(self) -> str:
        """No vendor has an engine of its own for it."""
        return "cpu"

    @property
    def device_module(self) -> ModuleType:
        """What stands for `torch.cuda`."""
        return self._module

    def is_available(self) -> bool:
        """Everywhere."""
        return True

    def is_platform_available(self, use_smi_check: bool = False) -> bool:
        """Only where it is asked for, by `VERL_PLATFORM`: never found by looking for it."""
        return False

    def current_device(self) -> str:
        """A name and no index: verl hands it to `Tensor.to`, for which 0 would be `cuda:0`."""
        return "cpu"

    def device_count(self) -> int:
        """One."""
        return 1

    def set_device(self, device_index: int) -> None:
        """There is one."""

    def synchronize(self, device_index: int | None = None) -> None:
        """Nothing runs behind Python's back."""

    def manual_seed(self, seed: int) -> None:
        """Seed torch."""
        torch.manual_seed(seed)

    def manual_seed_all(self, seed: int) -> None:
        """Seed torch."""
        torch.manual_seed(seed)

    def set_allocator_settings(self, settings: str) -> None:
        """No allocator of a device."""

    def empty_cache(self) -> None:
        """No cache of a device."""

    def get_device_capability(self, device_index: int = 0) -> tuple[int | None, int | None]:
        """None."""
        return None, None

    def communication_backend_name(self) -> str:
        """Gloo."""
        return "gloo"

    def visible_devices_envvar(self) -> str:
        """As of CUDA: Ray sets it for workers that hold what it counts as GPUs."""
        return "CUDA_VISIBLE_DEVICES"

    @contextmanager
    def nvtx_range(self, msg: str) -> Iterator[None]:
        """No profiler."""
        yield

    def profiler_start(self) -> None:
        """No profiler."""

    def profiler_stop(self) -> None:
        """No profiler."""

    def ray_resource_name(self) -> str:
        """GPU: verl's pool manager counts GPUs and NPUs and nothing else; Ray is told that it has some."""
        return "GPU"

    def ray_noset_envvars(self) -> list[str]:
        """As of CUDA."""
        return ["RAY_EXPERIMENTAL_NOSET_CUDA_VISIBLE_DEVICES"]

    def is_ipc_supported(self) -> bool:
        """No memory of a device to share."""
        return False

    def cudart(self) -> Any:
        """None."""
        return None
