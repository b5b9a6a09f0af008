"""What ``fit``, ``evaluate`` and ``predict`` call as they go."""

from pstrain.callbacks.base import Callback, CallbackList
from pstrain.callbacks.checkpoint import Checkpoint
from pstrain.callbacks.csv_logger import CSVLogger
from pstrain.callbacks.early_stopping import EarlyStopping
from pstrain.callbacks.learning_rate import LearningRateSchedule, LearningRateScheduler
from pstrain.callbacks.progress import ProgressBar
from pstrain.callbacks.tensorboard import TensorBoard

__all__ = [
    "CSVLogger",
    "Callback",
    "CallbackList",
    "Checkpoint",
    "EarlyStopping",
    "LearningRateSchedule",
    "LearningRateScheduler",
    "ProgressBar",
    "TensorBoard",
]
