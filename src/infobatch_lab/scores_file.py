"""A file of scores, and what a rule would keep of it: planning without training."""

from __future__ import annotations

import csv
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from infobatch import Pruner
from infobatch_lab import arrays
from infobatch_lab.errors import UserError, optional
from infobatch_lab.files import check_file, check_size
from infobatch_lab.pictures import ARROW_ERRORS
from infobatch_lab.visible import visible


def plan_for(
    file: Path,
    *,
    rule: str = "mean",
    prune_ratio: float | None = None,
    column: str | None = None,
    seed: int = 0,
) -> dict[str, Any]:
    """Plan the epoch after these scores were seen, and say what a rule keeps."""
    scores = read_scores(file, column)
    try:
        pruner = Pruner(len(scores), 2, prune_ratio, delta=1, rule=rule, seed=seed)
    except (TypeError, ValueError) as error:
        raise UserError(str(error)) from error
    indices = pruner.plan.indices
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)  # scores that are not finite are counted
        pruner.update(scores[indices], indices)
    plan = pruner.plan
    weights, counts = torch.unique(plan.weights, return_counts=True)
    return {
        "rule": rule,
        "num_samples": plan.num_samples,
        "num_unseen": pruner.num_nonfinite,
        "num_kept": len(plan),
        "num_pruned": plan.num_pruned,
        "pruned_fraction": plan.num_pruned / plan.num_samples,
        "threshold": plan.threshold,
        "weights": list(zip(weights.tolist(), counts.tolist(), strict=True)),
    }


def read_scores(file: Path, column: str | None = None) -> Tensor:
    """Read one score per sample from a .npy, .npz, .csv or .parquet file."""
    if not file.exists():
        raise UserError(f"{file} does not exist, expected a file of scores.")
    if file.suffix not in READERS:
        raise UserError(f"{file} is none of {', '.join(READERS)}: save the scores as one of these.")
    check_file(file)
    try:
        values = READERS[file.suffix](file, column)
    except (*ARROW_ERRORS, csv.Error) as error:
        raise UserError(f"{file} cannot be read as {file.suffix}: {first_line(error)}.") from error
    if values.ndim != 1 or values.dtype.kind not in "fiu" or len(values) == 0:
        raise UserError(
            f"{file} holds {values.dtype} of shape {values.shape}, expected one number per sample."
        )
    with np.errstate(over="ignore"):  # what no float32 holds is infinite, and counted
        return torch.from_numpy(values.astype(np.float32))


def first_line(error: Exception) -> str:
    """The first line of a library's long message."""
    return visible(str(error).strip().split("\n")[0], most=200).rstrip(".")


def read_npy(file: Path, column: str | None) -> NDArray[Any]:
    """Read an array; pickles are refused."""
    if column is not None:
        raise UserError(f"column is {column!r}, but {file} is an array without columns.")
    return arrays.read_npy(file)


def read_npz(file: Path, column: str | None) -> NDArray[Any]:
    """Read an array of an archive: its columns are its arrays."""
    archive = arrays.Archive(file)
    return archive.read(pick(file, column, archive.names))


def read_csv(file: Path, column: str | None) -> NDArray[Any]:
    """Read a column of a table with a header, or one without a header; an empty field is NaN."""
    with file.open(encoding="utf-8-sig", newline="") as lines:
        rows = [row for row in csv.reader(lines) if row]
    if not rows:
        raise ValueError("it is empty")
    place = 0
    if len(rows[0]) > 1 or not is_number(rows[0][0]) or column is not None:
        names = [name.strip() for name in rows.pop(0)]
        place = names.index(pick(file, column, names))
    for number, row in enumerate(rows, start=1):
        if len(row) <= place:
            raise ValueError(f"row {number} has no field {place + 1}")
    return np.array([float(row[place].strip() or "nan") for row in rows], dtype=np.float64)


def read_parquet(file: Path, column: str | None) -> NDArray[Any]:
    """Read a column of a table; a missing value is NaN."""
    parquet = optional("pyarrow.parquet")
    found = parquet.ParquetFile(file)
    name = pick(file, column, found.schema_arrow.names)
    kind = found.schema_arrow.field(name).type
    if not (optional("pyarrow").types.is_integer(kind) or kind in floats()):
        raise UserError(f"{file} holds {kind} in {name!r}, expected one number per sample.")
    check_size(file, 8 * found.metadata.num_rows)  # a run of equal values is packed into nothing
    values: NDArray[Any] = parquet.read_table(file, columns=[name])[name].to_numpy()
    return values


def floats() -> list[Any]:
    """Arrow's types of floating numbers."""
    arrow = optional("pyarrow")
    return [arrow.float16(), arrow.float32(), arrow.float64()]


def is_number(text: str) -> bool:
    """Whether a field is a number: `is_number("0.5")`."""
    try:
        float(text)
    except ValueError:
        return False
    return True


def pick(file: Path, column: str | None, names: list[str]) -> str:
    """Choose the column that holds the scores."""
    if column is None and len(names) == 1:
        return names[0]
    wanted = column or "score"
    if wanted not in names:
        known = visible(", ".join(names), most=300)
        raise UserError(f"{file} has no column {wanted!r}: name one of {known} with --column.")
    return wanted


READERS = {".npy": read_npy, ".npz": read_npz, ".csv": read_csv, ".parquet": read_parquet}
