"""A PyTorch module as a whole model: it maps the features of a schema to outputs.

Invariant: a module that does not fit the schema is refused before a variable is made.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import torch

from pstrain.errors import InvalidArgumentError, UnimplementedError
from pstrain.features.schema import Features
from pstrain.gradients.recording import record
from pstrain.gradients.tensor import Tensor, as_tensor
from pstrain.layers.embedding import Embedding
from pstrain.layers.interaction import concatenate
from pstrain.models import base
from pstrain.torch import devices, modules
from pstrain.torch.layer import Layer

_EXAMPLES = 2


class Model(base.Model):
    """A model whose outputs are ``module`` of embeddings and dense columns, side by side.

    ``module`` takes float32 [n, F * dim + D] for F categorical and D dense columns and returns
    [n, 1] or [n]; lazy modules get their shapes. The embeddings are rows of one table on the
    parameter servers, ``dim`` values wide; a step reads the rows that its batch needs. The module
    computes on ``device``, the embeddings are looked up on the processor. :class:`Layer` says what
    else happens to a module and what ``device`` may be. For other inputs or several modules write a
    ``pstrain.models.Model`` of layers.
    """

    kind: ClassVar[str] = "Torch"
    _arguments = ("dim", "name", "seed", "device")

    def __init__(
        self,
        schema: Any,
        module: Any,
        dim: int = 16,
        *,
        name: str = "torch",
        seed: int = 0,
        device: str | torch.device | None = None,
    ) -> None:
        super().__init__(schema)
        self.dim, self.name, self.seed = dim, name, seed
        self.device = devices.checked(device, name)
        modules.check(module, name)
        self._try(module)
        sizes = self.schema.vocabulary_sizes
        self.table = Embedding(sizes, dim, name=f"{name}/table", seed=seed) if sizes else None
        self.network = Layer(module, name=f"{name}/module", seed=seed, device=self.device)
        self.layers = [*([self.table] if self.table else []), self.network]
        if not self.variables:
            raise InvalidArgumentError(f"model {name!r}: the module has no parameters to train")

    def compute(self, values: Sequence[Sequence[Any]], features: Features) -> Tensor:
        matrix = as_tensor(features.dense)
        if self.table is not None:
            embedded = self.table.forward(values[0], features)
            matrix = concatenate([embedded, matrix]) if matrix.shape[1] else embedded
        output = self.network.forward(values[-1], matrix)
        self._check_shape(output.shape, len(features))
        if output.value.ndim == 2:
            return output
        column = Tensor(output.value.reshape(-1, 1))
        return record(column, (output,), lambda gradient: gradient.reshape(-1))

    def to_module(self) -> Any:
        """Returns the network with its current values, as a separate module on the processor."""
        return self.network.to_module()

    @classmethod
    def from_config(cls, config: Mapping[str, Any]) -> base.Model:  # noqa: ARG003
        """Raises UnimplementedError: a module has no JSON form."""
        raise UnimplementedError(
            "a torch module cannot be made from its configuration: make pstrain.torch.Model("
            "schema, module) anew and load its weights"
        )

    def _try(self, module: Any) -> None:
        """Calls the module as a step will, which also gives lazy parameters their shapes."""
        width = len(self.schema.categorical) * self.dim + len(self.schema.dense)
        example = torch.zeros(_EXAMPLES, width)
        try:
            output = modules.in_eval_mode(module, lambda: module(example))
        except Exception as error:
            raise InvalidArgumentError(
                f"model {self.name!r}: the module does not take float32 [n, {width}], which is "
                f"{len(self.schema.categorical)} embeddings of {self.dim} values and "
                f"{len(self.schema.dense)} dense columns: {error}"
            ) from error
        shape = tuple(output.shape) if isinstance(output, torch.Tensor) else type(output).__name__
        self._check_shape(shape, _EXAMPLES)

    def _check_shape(self, shape: Any, size: int) -> None:
        if shape not in ((size,), (size, 1)):
            raise InvalidArgumentError(
                f"model {self.name!r}: the module must return one number for each row, a tensor "
                f"[n, 1] or [n]; of {size} rows it made {shape}"
            )
