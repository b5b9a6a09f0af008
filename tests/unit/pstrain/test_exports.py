"""The package's public names: all there, and the same for type checkers."""

from __future__ import annotations

import ast
import importlib.resources
import inspect
import pathlib
from importlib import metadata
from types import ModuleType

import pytest

import pstrain
from pstrain import strategy


def test_every_public_name_can_be_imported() -> None:
    for module in (pstrain, pstrain.callbacks, strategy, pstrain.v1):
        for name in module.__all__:
            assert getattr(module, name) is not None, name
        assert set(module.__all__) <= set(dir(module))


def test_coordinator_signature_lists_its_options() -> None:
    parameters = inspect.signature(pstrain.ClusterCoordinator).parameters
    assert list(parameters)[:2] == ["strategy", "closures_in_flight"]
    assert "checkpoint" in parameters


@pytest.mark.parametrize("module", [pstrain, pstrain.callbacks, strategy, pstrain.v1])
def test_type_checking_imports_match_lazy_imports(module: ModuleType) -> None:
    tree = ast.parse(pathlib.Path(inspect.getfile(module)).read_text())
    block = next(node for node in tree.body if isinstance(node, ast.If))
    imported = {
        alias.asname or alias.name: f"{node.module}.{alias.name}"
        for node in block.body
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    }
    homes = {name: f"{home}.{name}" for name, home in module._HOMES.items()}
    assert imported == {**homes, **getattr(module, "_MODULES", {})}
    assert set(imported) == set(module.__all__)


@pytest.mark.parametrize("package", ["pstrain", "dataservice"])
def test_package_ships_py_typed(package: str) -> None:
    assert importlib.resources.files(package).joinpath("py.typed").is_file()


def test_package_tells_its_version() -> None:
    assert pstrain.__version__ == metadata.version("pstrain")
