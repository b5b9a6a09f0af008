"""The package's public names: all exist, and none makes the import slow."""

from __future__ import annotations

import ast
import inspect
import pathlib
import sys
from importlib import metadata

import pytest

import dataservice
from dataservice import public_names
from dataservice.public_names import HOMES, MODULES


@pytest.mark.parametrize("name", dataservice.__all__)
def test_every_public_name_resolves(name: str) -> None:
    assert getattr(dataservice, name) is getattr(dataservice, name)
    assert name in dir(dataservice)


def test_table_of_homes_matches_public_names() -> None:
    assert {*HOMES, *MODULES} == set(dataservice.__all__)


def test_type_checking_imports_match_table_of_homes() -> None:
    tree = ast.parse(pathlib.Path(inspect.getfile(dataservice)).read_text())
    block = next(node for node in tree.body if isinstance(node, ast.If))
    imported = {
        alias.name: node.module
        for node in block.body
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    }
    assert imported.pop("errors") == "dataservice"
    assert imported == HOMES


def test_package_import_needs_only_standard_library() -> None:
    for module in (dataservice, public_names):
        tree = ast.parse(pathlib.Path(inspect.getfile(module)).read_text())
        imports = [node for node in tree.body if isinstance(node, ast.Import)]
        modules = {alias.name for node in imports for alias in node.names} | {
            str(node.module) for node in tree.body if isinstance(node, ast.ImportFrom)
        }
        allowed = {"__future__", "dataservice.public_names", *sys.stdlib_module_names}
        assert modules <= allowed | {"collections.abc"}


@pytest.mark.parametrize(
    ("function", "names"),
    [
        (
            "distribute",
            "processing_mode service job_name consumer_index num_consumers "
            "max_outstanding_requests data_transfer_protocol compression cross_trainer_cache "
            "target_workers delivery ordered on_error timeout_s",
        ),
        (
            "from_dataset_id",
            "processing_mode service dataset_id element_spec job_name consumer_index "
            "num_consumers max_outstanding_requests data_transfer_protocol cross_trainer_cache "
            "target_workers compression delivery ordered on_error timeout_s",
        ),
        ("register_dataset", "service dataset compression dataset_id on_error timeout_s"),
    ],
)
def test_public_functions_name_arguments_as_in_tf_data(function: str, names: str) -> None:
    signature = inspect.signature(getattr(dataservice, function))
    assert list(signature.parameters) == names.split()


def test_package_tells_its_version() -> None:
    assert dataservice.__version__ == metadata.version("pstrain")
