"""What the fork server imports once, so that a cell starts in milliseconds.

Imports only: no operation, no thread and no device may be touched before the fork.
"""

import peft  # noqa: F401
import torch  # noqa: F401
import transformers  # noqa: F401
from trl import GRPOConfig, GRPOTrainer  # noqa: F401

from experiments.track.store import load_mlflow

load_mlflow()
