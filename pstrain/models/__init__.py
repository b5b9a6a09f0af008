"""The public models, and the functions that make one from its JSON form or from a saved one."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pstrain.models.base import Model
from pstrain.models.dcn import DCNv2
from pstrain.models.dlrm import DLRM
from pstrain.models.factorization import DeepFM, FactorizationMachine
from pstrain.models.loading import from_config, load_model
from pstrain.models.logistic_regression import LogisticRegression
from pstrain.models.wide_deep import WideDeep
from pstrain.porting import foreign_names

__all__ = [
    "DLRM",
    "DCNv2",
    "DeepFM",
    "FactorizationMachine",
    "LogisticRegression",
    "Model",
    "WideDeep",
    "from_config",
    "load_model",
]

if not TYPE_CHECKING:  # type checkers still report unknown names
    __getattr__ = foreign_names.module_getattr(__name__, foreign_names.MODELS)
