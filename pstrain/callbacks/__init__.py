"""The public callbacks of ``fit``, ``evaluate`` and ``predict``, imported when first used."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pstrain.public_names import lazy_getattr

if TYPE_CHECKING:
    from pstrain.callbacks.base import Callback, CallbackList
    from pstrain.callbacks.checkpoint import Checkpoint
    from pstrain.callbacks.csv_logger import CSVLogger
    from pstrain.callbacks.early_stopping import EarlyStopping
    from pstrain.callbacks.evict import Evict
    from pstrain.callbacks.lambda_callback import LambdaCallback
    from pstrain.callbacks.learning_rate import LearningRateSchedule, LearningRateScheduler
    from pstrain.callbacks.plateau import ReduceLROnPlateau
    from pstrain.callbacks.progress import ProgressBar
    from pstrain.callbacks.tensorboard import TensorBoard
    from pstrain.callbacks.terminate_on_nan import TerminateOnNaN

_HOMES = {
    "Callback": "pstrain.callbacks.base",
    "CallbackList": "pstrain.callbacks.base",
    "Checkpoint": "pstrain.callbacks.checkpoint",
    "CSVLogger": "pstrain.callbacks.csv_logger",
    "EarlyStopping": "pstrain.callbacks.early_stopping",
    "Evict": "pstrain.callbacks.evict",
    "LambdaCallback": "pstrain.callbacks.lambda_callback",
    "LearningRateSchedule": "pstrain.callbacks.learning_rate",
    "LearningRateScheduler": "pstrain.callbacks.learning_rate",
    "ReduceLROnPlateau": "pstrain.callbacks.plateau",
    "ProgressBar": "pstrain.callbacks.progress",
    "TensorBoard": "pstrain.callbacks.tensorboard",
    "TerminateOnNaN": "pstrain.callbacks.terminate_on_nan",
}

__all__ = [
    "CSVLogger",
    "Callback",
    "CallbackList",
    "Checkpoint",
    "EarlyStopping",
    "Evict",
    "LambdaCallback",
    "LearningRateSchedule",
    "LearningRateScheduler",
    "ProgressBar",
    "ReduceLROnPlateau",
    "TensorBoard",
    "TerminateOnNaN",
]

if not TYPE_CHECKING:  # type checkers still report unknown names
    __getattr__ = lazy_getattr(__name__, _HOMES, "CALLBACKS")


def __dir__() -> list[str]:
    return __all__
