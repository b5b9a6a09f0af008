"""Public layers."""

from __future__ import annotations

from pstrain.layers.base import Layer
from pstrain.layers.dense import Dense
from pstrain.layers.embedding import Embedding, WideDeepTable

__all__ = ["Dense", "Embedding", "Layer", "WideDeepTable"]
