"""Public layers."""

from __future__ import annotations

from pstrain.layers.base import Layer
from pstrain.layers.dense import Dense
from pstrain.layers.embedding import Embedding, WideDeepTable
from pstrain.layers.interaction import Cross, Interaction, NumericEmbedding, concatenate
from pstrain.layers.lookup import IntegerLookup, StringLookup

__all__ = [
    "Cross",
    "Dense",
    "Embedding",
    "IntegerLookup",
    "Interaction",
    "Layer",
    "NumericEmbedding",
    "StringLookup",
    "WideDeepTable",
    "concatenate",
]
