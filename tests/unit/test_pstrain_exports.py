from __future__ import annotations

import pytest

import pstrain


def test_every_public_name_is_there() -> None:
    for name in pstrain.__all__:
        assert getattr(pstrain, name) is not None, name
    assert set(pstrain.__all__) <= set(dir(pstrain))


def test_an_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        _ = pstrain.nothing  # type: ignore[attr-defined]
