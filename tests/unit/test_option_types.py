"""Typed options of methods: the same names and types as the functions behind the methods take."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import pytest

import dataservice as ds
from dataservice.client.arguments import DistributeOptions
from dataservice.dataset.dataset import Dataset
from pstrain import evaluation, training
from pstrain.models.base import Model
from pstrain.models.options import EvaluateOptions, FitOptions, PredictOptions

METHODS: list[tuple[Callable[..., Any], Callable[..., Any], type]] = [
    (Model.fit, training.fit, FitOptions),
    (Model.evaluate, evaluation.evaluate, EvaluateOptions),
    (Model.predict, evaluation.predict, PredictOptions),
    (Dataset.distribute, ds.distribute, DistributeOptions),
]


@pytest.mark.parametrize(("method", "function", "options"), METHODS)
def test_method_options_equal_parameters_of_function(
    method: Callable[..., Any], function: Callable[..., Any], options: type
) -> None:
    own = inspect.signature(method).parameters
    assert own["options"].annotation == f"Unpack[{options.__name__}]"
    told = {name: hint.__forward_arg__ for name, hint in options.__annotations__.items()}
    taken = inspect.signature(function).parameters
    assert told == {
        name: parameter.annotation
        for name, parameter in taken.items()
        if name not in own and name != "model"
    }


def test_method_docstring_names_function_that_documents_options() -> None:
    for method, function, _ in METHODS:
        assert f"{function.__module__}.{function.__name__}" in (method.__doc__ or "").replace(
            "dataservice.distribute", "dataservice.client.api.distribute"
        )
