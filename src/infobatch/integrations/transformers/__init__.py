"""transformers' Trainer, and what is built on it (trl's SFTTrainer), on epochs that shrink.

The index of a sample rides in the batch and is taken out before the model sees it, so nothing that
reads ahead, shards or accumulates can put a loss on the wrong sample.

`losses.py` has the loss of each target of each sample, for the heads of transformers. `trainer.py`
weighs it, step by step. `loop.py` holds the hooks around the steps, with what they need beside it:
`batches.py`, the order of an epoch, `checkpoint.py` and `checks.py`.
"""

try:
    import accelerate  # noqa: F401  # the Trainer needs it, and says so later
    import transformers  # noqa: F401
except ModuleNotFoundError as error:
    raise ModuleNotFoundError(
        "infobatch.integrations.transformers needs transformers and accelerate: "
        "pip install infobatch[transformers]."
    ) from error

from infobatch.integrations.transformers.loop import INDEX
from infobatch.integrations.transformers.trainer import InfoBatchTrainer

__all__ = ["INDEX", "InfoBatchTrainer"]
