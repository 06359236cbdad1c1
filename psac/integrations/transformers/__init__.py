"""Private training by transformers.Trainer (`pip install psac[hf]`); see guides/language-models."""

from psac.integrations.transformers.arguments import PrivacyArguments
from psac.integrations.transformers.trainer import PrivateTrainer

__all__ = ["PrivacyArguments", "PrivateTrainer"]
