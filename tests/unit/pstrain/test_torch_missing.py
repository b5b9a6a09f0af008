"""Without the package torch, an error says what to install."""

from __future__ import annotations

import importlib
import sys

import pytest

import pstrain


def test_missing_torch_is_reported_with_install_command(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in sys.modules if name.startswith("pstrain.torch")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.delitem(vars(pstrain), "torch", raising=False)
    monkeypatch.setitem(sys.modules, "torch", None)
    with pytest.raises(ImportError, match=r"pip install 'pstrain\[torch\]'"):
        importlib.import_module("pstrain.torch")
    with pytest.raises(ImportError, match=r"pip install 'pstrain\[torch\]'"):
        _ = pstrain.torch
    assert "torch" not in pstrain.__all__
