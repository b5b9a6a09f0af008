"""PyTorch modules as networks on parameter servers; needs the package torch.

``Model`` trains a module as it is; ``Layer`` is a module among other layers. Nothing else in
pstrain imports torch, here or in a trainer that is sent no module.
"""

from __future__ import annotations

try:
    import torch as _torch  # noqa: F401
except ModuleNotFoundError as error:
    if error.name != "torch":
        raise
    raise ImportError(
        "pstrain.torch needs the package torch, which is not installed here: "
        "pip install 'pstrain[torch]', where the trainers run too"
    ) from error

from pstrain.torch.layer import Layer
from pstrain.torch.model import Model

__all__ = ["Layer", "Model"]
