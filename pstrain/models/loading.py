"""Makes models anew: from their JSON form, with new values, or from where they were saved.

Knows nothing of what a model computes. Invariant: a model that was saved is returned only with the
values that were saved.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

from dataservice.runtime.arguments import nearest
from pstrain.errors import InvalidArgumentError, NotFoundError
from pstrain.models.base import Model
from pstrain.models.dcn import DCNv2
from pstrain.models.dlrm import DLRM
from pstrain.models.factorization import DeepFM, FactorizationMachine
from pstrain.models.logistic_regression import LogisticRegression
from pstrain.models.wide_deep import WideDeep

_BY_KIND: dict[str, type[Model]] = {
    cls.kind: cls
    for cls in (LogisticRegression, FactorizationMachine, WideDeep, DeepFM, DLRM, DCNv2)
}


def from_config(config: Mapping[str, Any]) -> Model:
    """Makes a model from the result of :meth:`Model.get_config`, with new variables."""
    cls = _BY_KIND.get(config.get("kind", ""))
    if cls is None:
        raise InvalidArgumentError(
            f"unknown model {config.get('kind')!r}: choose one of {', '.join(_BY_KIND)}"
            f"{nearest(config.get('kind'), _BY_KIND)}"
        )
    return cls.from_config(config)


def load_model(path: str | os.PathLike[str], name: str = "model") -> Any:
    """Returns the model that a folder holds, with its values.

    ``path``: a checkpoint, or a folder whose newest one counts, of ``model.save_weights``, of
    ``Checkpoint(model=model)`` (saved under another name: ``name``) or of ``pstrain train --out``.
    The last gives a :class:`~pstrain.tabular.table_model.TableModel`, which takes rows as they are
    in the files, the others a model as it was saved. Under ``strategy.scope()`` the values go to
    the parameter servers. The model is to be compiled before it is trained on, or evaluated by more
    than its loss. NotFoundError without a checkpoint there; InvalidArgumentError for a model that
    only its program can make, such as of a torch module.
    """
    # Imported here, as below: trainers, which import this package, read no checkpoints.
    from pstrain.checkpoints.manifest import find
    from pstrain.tabular import preparation
    from pstrain.tabular.table_model import TableModel

    found = find(path)
    folder = os.path.dirname(os.path.abspath(found))
    # First, because the values of a large model may go to parameter servers.
    prepared = preparation.Preparation.load(folder) if preparation.is_in(folder) else None
    model = restored(found, name)
    return model if prepared is None else TableModel(model, prepared)


def restored(found: str, name: str = "model") -> Model:
    """Returns the model that a checkpoint holds, for rows as it was trained on."""
    from pstrain.checkpoints.checkpoint import Checkpoint

    model = _recreated(found, name)
    Checkpoint(**{name: model}).restore(found)
    return model


def _recreated(found: str, name: str) -> Model:
    from pstrain.checkpoints.objects import read_config

    try:
        return from_config(read_config(found, name))
    except (InvalidArgumentError, NotFoundError) as error:
        raise InvalidArgumentError(
            f"checkpoint {found!r} holds no {name!r} that can be made of it alone ({error}): make "
            "a torch module, or another model of your own, as the program did that trained it, "
            "restore the checkpoint into it and call model.evaluate(data) or model.predict(data)"
        ) from error
