"""Whether a network fits into this machine, asked before it is built."""

import os

import torch

from ..core import SettingError
from .options import Factory

BYTES_PER_PARAMETER = 4
COPIES_OF_A_RUN = 3  # the network that is trained, the one that is evaluated, and the server's


def require_memory(
    factory: Factory,
    name: str,
    input_shape: tuple[int, ...],
    num_classes: int,
    options: dict[str, object],
    copies: int,
) -> None:
    """Refuse a network whose parameters cannot be held; built on torch's meta device it costs
    none.
    """
    with torch.device("meta"):
        module = factory(input_shape, num_classes, **options)
    parameters = copies * sum(parameter.numel() for parameter in module.parameters())
    needed, present = parameters * BYTES_PER_PARAMETER * COPIES_OF_A_RUN, physical_memory()
    if present is not None and needed > present:
        raise SettingError(
            f"model {name!r} must fit into memory {COPIES_OF_A_RUN} times, "
            f"{present / 1e9:,.1f} GB, got {parameters:,} parameters, which take "
            f"{needed / 1e9:,.1f} GB"
        )


def physical_memory() -> int | None:
    """Bytes of memory of this machine; None where the system does not say."""
    try:
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (AttributeError, OSError, ValueError):
        return None
