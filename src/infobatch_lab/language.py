"""What the tasks on text share: transformers, and sequences of tokens in batches."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Sequence
from contextlib import redirect_stderr
from io import StringIO
from pathlib import Path
from types import ModuleType

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from infobatch_lab.errors import optional


def transformers() -> ModuleType:
    """transformers, without its bars and reports: the command line shows its own."""
    library = optional("transformers")
    library.logging.set_verbosity_error()
    library.logging.disable_progress_bar()
    return library


def from_gguf(path: Path) -> Path:
    """The language model of a GGUF file, as a folder in transformers' own format; converted once.

    The Trainer refuses to train a network that was read from GGUF. Its weights are plain floats
    by then, so a new network gets them. Loading the folder also takes a tenth of the time.
    """
    folder = path.with_suffix(".float32")
    if folder.is_dir():
        return folder
    optional("gguf")
    library = transformers()
    from_file = {"pretrained_model_name_or_path": path.parent, "gguf_file": path.name}
    with redirect_stderr(StringIO()):  # the bar of the conversion has no switch
        read = library.AutoModelForCausalLM.from_pretrained(**from_file, dtype=torch.float32)
        tokenizer = library.AutoTokenizer.from_pretrained(**from_file)
    config = read.config.to_dict()
    config.pop("quantization_config", None)
    network = type(read)(type(read.config).from_dict(config))
    network.load_state_dict(read.state_dict())
    with tempfile.TemporaryDirectory(dir=path.parent) as part:
        converted = Path(part, "converted")
        network.save_pretrained(converted)
        tokenizer.save_pretrained(converted)
        try:
            os.replace(converted, folder)
        except OSError:
            if not folder.is_dir():  # else another process was faster
                raise
    return folder


def padded(sequences: Sequence[Tensor], value: int) -> Tensor:
    """Sequences as the rows of one tensor, filled up at their ends.

    >>> padded([torch.tensor([5, 6]), torch.tensor([7])], 0)
    tensor([[5, 6],
            [7, 0]])
    """
    return pad_sequence(list(sequences), batch_first=True, padding_value=value)


def attention_mask(sequences: Sequence[Tensor]) -> Tensor:
    """1 where a padded row has tokens of its own, 0 where it was filled up."""
    return padded([torch.ones_like(sequence) for sequence in sequences], 0)


def by_length(sequences: Sequence[Tensor], batch_size: int) -> list[list[int]]:
    """Batches of places, the longest sequences first: little is filled up.

    >>> by_length([torch.ones(2), torch.ones(9), torch.ones(5)], 2)
    [[1, 2], [0]]
    """
    order = sorted(range(len(sequences)), key=lambda place: -len(sequences[place]))
    return [order[i : i + batch_size] for i in range(0, len(order), batch_size)]
