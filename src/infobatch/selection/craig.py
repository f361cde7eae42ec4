"""CRAIG (Mirzasoleiman et al., ICML 2020): a weighted subset with nearly the gradient of all.

Facility location with s_ij = C - norm(g_i - g_j), where g is the last layer's gradient and C is at
least the largest distance. The weight of a chosen sample is how many samples it is the nearest of,
itself included, so the weights sum to n. The gradients stand on the last layer and are never formed
(see `Vectors`). Cost: that of facility location, with c + d in the
place of d.
"""

from __future__ import annotations

from torch import Generator, Tensor

from infobatch.selection.base import Chosen
from infobatch.selection.facility_location import cover
from infobatch.selection.statistics import Statistics
from infobatch.selection.vectors import RowsOf, Vectors, gradients, squared_distances


def choose(statistics: Statistics, budget: int, rng: Generator) -> Chosen:
    """Choose greedily by the distance of all gradients to their nearest chosen one."""
    vectors = gradients(statistics)
    found = cover(nearness(vectors), len(vectors), budget, vectors.factors[0].device)
    return Chosen(found.chosen, found.owner.bincount(minlength=budget).float())


def nearness(vectors: Vectors) -> RowsOf:
    """Rows of C less the Euclidean distance, with C twice the largest norm."""
    largest_distance = 2 * vectors.squared_norms().amax().sqrt()
    distances_of = squared_distances(vectors)

    def rows_of(indices: Tensor) -> Tensor:
        rows = largest_distance - distances_of(indices).sqrt_()
        return rows.clamp_(min=0)  # rounding can leave a distance just above C

    return rows_of
