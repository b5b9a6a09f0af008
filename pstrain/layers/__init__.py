"""The public layers."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pstrain.layers.base import Layer
from pstrain.layers.dense import Dense
from pstrain.layers.embedding import Embedding, WideDeepTable
from pstrain.layers.interaction import Cross, Interaction, NumericEmbedding, concatenate
from pstrain.layers.lookup import IntegerLookup, StringLookup
from pstrain.layers.online import OnlineLookup
from pstrain.porting import foreign_names

__all__ = [
    "Cross",
    "Dense",
    "Embedding",
    "IntegerLookup",
    "Interaction",
    "Layer",
    "NumericEmbedding",
    "OnlineLookup",
    "StringLookup",
    "WideDeepTable",
    "concatenate",
]

if not TYPE_CHECKING:  # type checkers still report unknown names
    __getattr__ = foreign_names.module_getattr(__name__, foreign_names.LAYERS)
