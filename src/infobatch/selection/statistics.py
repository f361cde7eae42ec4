"""What is known about the samples, one row each. A method reads nothing else."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from infobatch.errors import check_whole

FLOATS = {
    "probabilities": ("samples", "classes"),
    "features": ("samples", "dimensions"),
    "changes": ("samples", "visits"),
    "grand": ("samples",),
    "el2n": ("samples",),
    "perturbation": ("samples",),
    "scores": ("samples",),
}
WHOLE = {"labels": ("samples",), "correct": ("samples", "visits")}
SHAPES = {**WHOLE, **FLOATS}
"""The fields that have one row per sample, and their shapes."""


@dataclass(frozen=True, eq=False)
class Statistics:
    """Statistics of a data set. Pass those you have, as tensors or arrays.

    >>> statistics = Statistics(features=torch.eye(3), labels=[0, 1, 1])
    >>> len(statistics), statistics.take(torch.tensor([2])).labels
    (3, tensor([1]))
    """

    num_samples: int | None = None
    """The size of the data set; needed only if no other field is given."""
    labels: Tensor | None = None
    """The class of each sample."""
    probabilities: Tensor | None = None
    """Softmax of the model's output."""
    features: Tensor | None = None
    """Input of the model's last linear layer."""
    correct: Tensor | None = None
    """At each visit of a sample: 1 right, 0 wrong; -1 after its last visit."""
    changes: Tensor | None = None
    """From each visit to the next: sum over classes of abs(p' log(p' / p)); NaN after the last."""
    grand: Tensor | None = None
    """Norm of the gradient of a sample's loss with respect to all parameters, averaged."""
    el2n: Tensor | None = None
    """Norm of (probabilities - one-hot label), averaged over models."""
    perturbation: Tensor | None = None
    """Norm of the smallest change of the input found to flip the prediction."""
    scores: Tensor | None = None
    """A score per sample, for methods that keep the highest."""
    validation: Statistics | None = None
    """Statistics of a validation set under the same model."""

    def __post_init__(self) -> None:
        num_samples, first = self.num_samples, "num_samples"
        if num_samples is not None:
            check_whole("num_samples", num_samples, at_least=0)
        for name, shape in SHAPES.items():
            value = getattr(self, name)
            if value is None:
                continue
            value = _as_tensor(name, value, shape)
            object.__setattr__(self, name, value)
            if num_samples is None:
                num_samples, first = len(value), name
            if len(value) != num_samples:
                raise ValueError(
                    f"{name} has {len(value)} rows, but {first} says {num_samples} samples: "
                    "expected one row per sample in every field."
                )
        if num_samples is None:
            raise ValueError("num_samples is None and no field is given, expected one of them.")
        object.__setattr__(self, "num_samples", num_samples)

    def __len__(self) -> int:
        assert self.num_samples is not None  # set by __post_init__
        return self.num_samples

    def __or__(self, other: Statistics) -> Statistics:
        """The fields of both; if both have a field, that of `other`."""
        if len(other) != len(self):
            raise ValueError(
                f"statistics of {len(self)} and of {len(other)} samples cannot be put together: "
                "expected those of one data set."
            )
        given = {f.name: getattr(other, f.name) for f in fields(other)}
        return replace(self, **{name: value for name, value in given.items() if value is not None})

    def take(self, indices: Tensor) -> Statistics:
        """The statistics of these samples only; the validation set stays whole."""
        rows = {name: value[indices] for name, value in self._rows().items()}
        return Statistics(len(indices), **rows, validation=self.validation)

    def require(self, name: str) -> Tensor:
        """A field, or an error if it is None: `statistics.require("features")`."""
        value = getattr(self, name)
        if value is None:
            raise ValueError(f"statistics.{name} is None, expected it: {HOW_TO_GET[name]}.")
        assert isinstance(value, Tensor)
        return value

    def errors(self) -> Tensor:
        """Softmax minus one-hot label: the gradient of the cross entropy for the logits."""
        labels, errors = self.require("labels"), self.require("probabilities").clone()
        if len(labels) and not 0 <= int(labels.min()) <= int(labels.max()) < errors.shape[1]:
            raise ValueError(
                f"labels go from {int(labels.min())} to {int(labels.max())}, expected classes of "
                f"probabilities: 0 to {errors.shape[1] - 1}."
            )
        errors[torch.arange(len(errors), device=errors.device), labels] -= 1
        return errors

    def _rows(self) -> dict[str, Tensor]:
        found = {name: getattr(self, name) for name in SHAPES}
        return {name: value for name, value in found.items() if value is not None}

    # Files ---------------------------------------------------------------------------------------

    def save(self, path: str | Path) -> None:
        """Write to a file, .npz or .parquet: `statistics.save("train.npz")`."""
        write(path, self, {})

    @staticmethod
    def load(path: str | Path) -> Statistics:
        """Read what `save` wrote: `Statistics.load("train.npz")`."""
        return read(path)[0]


HOW_TO_GET = {
    "labels": "give the classes, or let selection.collect read them from the data set",
    "probabilities": "let selection.collect gather it with a trained model",
    "features": "let selection.collect gather it with a trained model",
    "correct": "carry a selection.Visits through a training loop",
    "changes": 'carry a selection.Visits(..., ["tdds"]) through a training loop',
    "grand": "let selection.collect, or collect_runs, gather it with a model trained briefly",
    "el2n": "let selection.collect, or collect_runs, gather it with a model trained briefly",
    "perturbation": "let selection.collect gather it with a trained model",
    "scores": "give a number for each sample",
    "validation": "give selection.collect a validation set",
}


def _as_tensor(name: str, value: object, shape: tuple[str, ...]) -> Tensor:
    tensor = torch.as_tensor(value)
    whole = name in WHOLE
    is_number = not tensor.is_complex() and (tensor.dtype != torch.bool or name == "correct")
    if tensor.numel() == 0 and not whole:
        tensor = tensor.float()
    if tensor.dim() != len(shape) or not is_number or (whole and tensor.is_floating_point()):
        kind = "whole numbers" if whole else "numbers"
        raise ValueError(
            f"{name} is {tensor.dtype} of shape {tuple(tensor.shape)}, expected {kind} of shape "
            f"({', '.join(shape)})."
        )
    tensor = tensor.detach()
    if name == "labels":
        return tensor.long()
    if name == "correct":
        return tensor.to(torch.int8)
    return tensor if tensor.dtype == torch.float64 else tensor.float()


def check_finite(statistics: Statistics, names: Iterable[str]) -> None:
    """Raise if one of these fields is missing or has a NaN or an infinity."""
    for name in names:
        if name == "validation":
            if statistics.validation is None:
                raise ValueError(
                    f"statistics.validation is None, expected it: {HOW_TO_GET['validation']}."
                )
            check_finite(statistics.validation, ("labels", "probabilities", "features"))
            continue
        value = statistics.require(name)
        # A sample with fewer visits than others has no number for the visits it lacks. The sum
        # needs no memory; it may be infinite without an infinity in it, so look again then.
        if name == "changes" or value.sum().isfinite():
            continue
        bad = (~value.isfinite()).nonzero()
        if len(bad):
            raise ValueError(
                f"statistics.{name} is {value[tuple(bad[0])]} for sample {int(bad[0, 0])}, "
                f"expected finite numbers ({len(bad)} are not): leave these samples out, or "
                "collect with a model that did not diverge."
            )


def write(path: str | Path, statistics: Statistics, notes: Mapping[str, str]) -> None:
    """Write statistics and a few notes. The file is complete or not there, never half written."""
    path = Path(path)
    arrays: dict[str, Any] = {
        name: value.cpu().numpy() for name, value in statistics._rows().items()
    }
    partial = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        if is_parquet(path):
            _write_parquet(partial, statistics, arrays, notes)
        else:
            if statistics.validation is not None:
                inner = statistics.validation._rows()
                arrays |= {f"validation.{name}": v.cpu().numpy() for name, v in inner.items()}
            arrays["num_samples"] = np.array(len(statistics))
            arrays |= {f"note.{name}": np.array(text) for name, text in notes.items()}
            with partial.open("wb") as file:
                np.savez(file, **arrays)
        partial.replace(path)
    finally:
        partial.unlink(missing_ok=True)


def read(path: str | Path) -> tuple[Statistics, dict[str, str]]:
    """The statistics and the notes that `write` was given."""
    path = Path(path)
    if is_parquet(path):
        return _read_parquet(path)
    with np.load(path, allow_pickle=False) as file:
        found = {name: file[name] for name in file.files}
    if "num_samples" not in found:
        raise ValueError(f"{path} has no statistics, expected a file that Statistics.save wrote.")
    notes = {n.removeprefix("note."): str(v) for n, v in found.items() if n.startswith("note.")}
    inner = {
        n.removeprefix("validation."): v for n, v in found.items() if n.startswith("validation.")
    }
    statistics = Statistics(
        int(found["num_samples"]),
        **{name: value for name, value in found.items() if name in SHAPES},
        validation=Statistics(**inner) if inner else None,
    )
    return statistics, notes


def is_parquet(path: str | Path) -> bool:
    """Whether to write parquet or npz, or raise."""
    path = Path(path)
    if path.suffix not in (".npz", ".parquet"):
        raise ValueError(f"path is {str(path)!r}, expected a name that ends in .npz or .parquet.")
    return path.suffix == ".parquet"


def _write_parquet(
    path: Path, statistics: Statistics, arrays: dict[str, Any], notes: Mapping[str, str]
) -> None:
    pa, pq = _arrow()
    if statistics.validation is not None:
        raise ValueError(
            "statistics.validation is a table of its own, expected None in a .parquet file: save "
            "it beside this one, or both together as .npz."
        )
    columns = {
        name: pa.FixedSizeListArray.from_arrays(pa.array(value.ravel()), value.shape[1])
        if value.ndim == 2
        else pa.array(value)
        for name, value in arrays.items()
    }
    # A table without columns would forget how many rows it has.
    about = {"num_samples": str(len(statistics)), **{f"note.{n}": t for n, t in notes.items()}}
    pq.write_table(pa.table(columns).replace_schema_metadata(about), path)


def _read_parquet(path: Path) -> tuple[Statistics, dict[str, str]]:
    pa, pq = _arrow()
    table = pq.read_table(path)
    about = {k.decode(): v.decode() for k, v in (table.schema.metadata or {}).items()}
    if "num_samples" not in about:
        raise ValueError(f"{path} has no statistics, expected a file that Statistics.save wrote.")
    arrays = {}
    for name in table.column_names:
        column = table[name].combine_chunks()
        if pa.types.is_fixed_size_list(column.type):
            flat = column.flatten().to_numpy(zero_copy_only=False)
            arrays[name] = flat.reshape(len(column), column.type.list_size)
        else:
            arrays[name] = column.to_numpy(zero_copy_only=False)
    arrays = {name: np.array(value) for name, value in arrays.items()}  # writable
    notes = {n.removeprefix("note."): t for n, t in about.items() if n.startswith("note.")}
    return Statistics(int(about["num_samples"]), **arrays), notes


def _arrow() -> tuple[Any, Any]:
    try:
        import pyarrow
        import pyarrow.parquet
    except ImportError as error:
        raise ImportError(
            "a .parquet file needs pyarrow: pip install pyarrow, or give a path that ends in .npz."
        ) from error
    return pyarrow, pyarrow.parquet
