"""The public models, and the function that makes a model from its JSON form."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from dataservice.runtime.arguments import nearest
from pstrain import foreign_names
from pstrain.errors import InvalidArgumentError
from pstrain.models.base import Model
from pstrain.models.dcn import DCNv2
from pstrain.models.dlrm import DLRM
from pstrain.models.factorization import DeepFM, FactorizationMachine
from pstrain.models.logistic_regression import LogisticRegression
from pstrain.models.wide_deep import WideDeep

__all__ = [
    "DLRM",
    "DCNv2",
    "DeepFM",
    "FactorizationMachine",
    "LogisticRegression",
    "Model",
    "WideDeep",
    "from_config",
]

if not TYPE_CHECKING:  # type checkers still report unknown names
    __getattr__ = foreign_names.module_getattr(__name__, foreign_names.MODELS)

_BY_KIND: dict[str, type[Model]] = {
    cls.kind: cls
    for cls in (LogisticRegression, FactorizationMachine, WideDeep, DeepFM, DLRM, DCNv2)
}


def from_config(config: Mapping[str, Any]) -> Model:
    """Makes a model from the result of :meth:`Model.get_config`, with new variables."""
    cls = _BY_KIND.get(config.get("kind", ""))
    if cls is None:
        raise InvalidArgumentError(
            f"unknown model {config.get('kind')!r}: choose one of {', '.join(_BY_KIND)}"
            f"{nearest(config.get('kind'), _BY_KIND)}"
        )
    return cls.from_config(config)
