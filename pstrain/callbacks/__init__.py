"""The public callbacks of ``fit``, ``evaluate`` and ``predict``."""

from typing import TYPE_CHECKING

from pstrain import foreign_names
from pstrain.callbacks.base import Callback, CallbackList
from pstrain.callbacks.checkpoint import Checkpoint
from pstrain.callbacks.csv_logger import CSVLogger
from pstrain.callbacks.early_stopping import EarlyStopping
from pstrain.callbacks.evict import Evict
from pstrain.callbacks.learning_rate import LearningRateSchedule, LearningRateScheduler
from pstrain.callbacks.plateau import ReduceLROnPlateau
from pstrain.callbacks.progress import ProgressBar
from pstrain.callbacks.tensorboard import TensorBoard

__all__ = [
    "CSVLogger",
    "Callback",
    "CallbackList",
    "Checkpoint",
    "EarlyStopping",
    "Evict",
    "LearningRateSchedule",
    "LearningRateScheduler",
    "ProgressBar",
    "ReduceLROnPlateau",
    "TensorBoard",
]

if not TYPE_CHECKING:  # type checkers still report unknown names
    __getattr__ = foreign_names.module_getattr(__name__, foreign_names.CALLBACKS)
