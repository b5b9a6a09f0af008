"""Public layers."""

from __future__ import annotations

from pstrain.layers.base import Layer
from pstrain.layers.dense import Dense
from pstrain.layers.embedding import Embedding, WideDeepTable
from pstrain.layers.interaction import Cross, Interaction, NumericEmbedding, concatenate

__all__ = [
    "Cross",
    "Dense",
    "Embedding",
    "Interaction",
    "Layer",
    "NumericEmbedding",
    "WideDeepTable",
    "concatenate",
]
