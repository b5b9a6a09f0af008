"""What programs written for Keras give as arguments, and what does it here.

Only words for errors, and the one way to say them. Invariant: no name here is one that the
callable takes.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from typing import Any, Final, TypeVar, cast

from pstrain.errors import InvalidTypeError

Called = TypeVar("Called", bound=Callable[..., Any])

_ROWS: Final = "every row counts alike: repeat or leave out rows in the dataset"
_READING: Final = "the dataset says how it is read: distribute() it to data workers"
_LOSS: Final = "models minimise the log loss; for another write a step with a GradientTape"
FIT: Final = {
    "x": "write data=, a Dataset of batches, an Arrow table or a dict of arrays, labels included",
    "y": "labels are a column of data=, which the model's schema names (label=)",
    "validation_split": "write validation_data=; Dataset.take(n) and skip(n) divide a dataset",
    "validation_steps": "write validation_data=dataset.take(n), of so many batches",
    "validation_batch_size": "validation_data in batches of its own size: Dataset.batch(n)",
    "validation_freq": "evaluate in a callback's on_epoch_end",
    "shuffle": "write dataset.shuffle(buffer_size)",
    "class_weight": _ROWS,
    "sample_weight": _ROWS,
    "workers": _READING,
    "use_multiprocessing": _READING,
    "max_queue_size": _READING,
}
EVALUATE: Final = {name: FIT[name] for name in ("x", "y", "sample_weight", "workers")} | {
    "return_dict": "a dict is what there is, by name"
}
PREDICT: Final = {"x": FIT["x"], "workers": _READING, "verbose": "it prints nothing"}
COMPILE: Final = {
    "loss": _LOSS,
    "loss_weights": _LOSS,
    "weighted_metrics": _ROWS,
    "run_eagerly": "steps always run as they are written",
    "jit_compile": "kernels are compiled always",
    "steps_per_execution": "write fit(steps_per_execution=...)",
}
_START: Final = "name= and seed= decide how it starts"
_PENALTY: Final = "optimizers take l2="
EMBEDDING: Final = {
    "input_dim": "write vocabulary_sizes=, a number or one for each field",
    "output_dim": "write dim=",
    "embeddings_initializer": f"{_START}; for another write a Variable with an initializer",
    "embeddings_regularizer": _PENALTY,
    "mask_zero": "lists are as long as they are: combiner= pools them",
    "input_length": "lists are as long as they are",
}
DENSE: Final = {
    "input_dim": "write input_size=",
    "input_shape": "write input_size=",
    "kernel_initializer": _START,
    "bias_initializer": "it starts at 0",
    "kernel_regularizer": _PENALTY,
    "bias_regularizer": _PENALTY,
}
OPTIMIZER: Final = {
    "lr": "write learning_rate=",
    "decay": "give learning_rate= a schedule, such as schedules.InverseTimeDecay",
    "weight_decay": "write l2=, which is added to the gradient",
    "amsgrad": "Adam is lazy here: only rows that a step touches change",
    "use_ema": "average in the program what variables read as",
    "gradient_accumulation_steps": 'write consistency="sync": a step of all trainers\' gradients',
}
CHECKPOINT: Final = {
    "filepath": "write directory=, in which each checkpoint is one of its own",
    "save_freq": "write every= (epochs) or every_steps=",
    "save_weights_only": "the model, its optimizer and the data position are saved together",
    "period": "write every=",
}
EARLY_STOPPING: Final = {
    "restore_best_weights": "write callbacks.Checkpoint(dir, save_best_only=True), and restore it",
}
AUC: Final = {
    "num_thresholds": "write bins=",
    "from_logits": "give losses.sigmoid(logits)",
    "curve": "it is that of the ROC",
}


def instead_of(what: str, remedies: Mapping[str, str]) -> Callable[[Called], Called]:
    """Has a callable, which is called ``what``, say what to write instead of these arguments."""

    def tell(function: Called) -> Called:
        @functools.wraps(function)
        def call(*args: Any, **arguments: Any) -> Any:
            for name in arguments:
                if name in remedies:
                    raise InvalidTypeError(f"{what} takes no argument {name!r}: {remedies[name]}")
            return function(*args, **arguments)

        return cast("Called", call)

    return tell
