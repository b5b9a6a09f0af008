"""The V1 form: every worker runs the same script, without a coordinator."""

from pstrain.v1.strategy import ParameterServerStrategy
from pstrain.v1.training import TrainingSession

__all__ = ["ParameterServerStrategy", "TrainingSession"]
