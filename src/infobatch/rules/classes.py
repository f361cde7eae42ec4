"""Labels, divided into classes once."""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor


@dataclass(frozen=True)
class Classes:
    """The samples of each class. Equal labels give equal classes.

    >>> [members.tolist() for members in Classes.of([7, 3, 7]).members]
    [[1], [0, 2]]
    """

    num_samples: int
    num_classes: int
    checksum: int
    members: tuple[Tensor, ...] = field(compare=False)

    @classmethod
    def of(cls, labels: Tensor | Sequence[int]) -> Classes:
        """The classes of a data set: `Classes.of(dataset.targets)`."""
        array = np.asarray(labels)
        if array.ndim != 1 or array.dtype.kind not in "iu" or len(array) == 0:
            raise ValueError(
                "labels must be one whole number per sample: pass the data set's targets."
            )
        by_class = np.argsort(array, kind="stable")
        starts = np.flatnonzero(np.diff(array[by_class])) + 1
        members = tuple(torch.from_numpy(part) for part in np.split(by_class, starts))
        checksum = zlib.crc32(array.astype(np.int64).tobytes())
        return cls(len(array), len(members), checksum, members)

    def check(self, num_samples: int) -> None:
        """Raise if there is not a label for each sample: `classes.check(len(scores))`."""
        if self.num_samples != num_samples:
            raise ValueError(
                f"labels has {self.num_samples} entries for {num_samples} samples, expected one "
                "each."
            )

    def __repr__(self) -> str:
        # A checkpoint knows its rule by this, so it must be short and tell labels apart.
        return f"{self.num_classes} classes, checksum {self.checksum:08x}"
