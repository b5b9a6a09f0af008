"""What ``fit`` calls as it goes."""

from pstrain.callbacks.base import Callback, CallbackList
from pstrain.callbacks.checkpoint import Checkpoint
from pstrain.callbacks.early_stopping import EarlyStopping
from pstrain.callbacks.learning_rate import LearningRateSchedule
from pstrain.callbacks.progress import ProgressBar

__all__ = [
    "Callback",
    "CallbackList",
    "Checkpoint",
    "EarlyStopping",
    "LearningRateSchedule",
    "ProgressBar",
]
