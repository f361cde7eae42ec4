"""D2 pruning (Maharana et al., ICLR 2024): difficulty and diversity on a graph of neighbours.

In the graph of the k = 5 nearest neighbours by features, a sample's score x (EL2N) first grows by
its neighbours': x_i += sum_j exp(-d_ij) x_j. Then, again and again, the highest is taken and its
neighbours' scores shrink: x_j -= exp(-0.1 d_ij) x_i. d is the Euclidean distance. Cost: O(n^2 d) in
blocks for the graph, O((n + k) log n) for the choice; memory O(n) beside a block.
"""

from __future__ import annotations

import heapq

import torch
from torch import Generator, Tensor

from infobatch.selection.base import Chosen
from infobatch.selection.statistics import Statistics
from infobatch.selection.vectors import Vectors, features, rows_in_block, squared_distances

NUM_NEIGHBOURS = 5
FORWARD, REVERSE = 1.0, 0.1


def choose(statistics: Statistics, budget: int, rng: Generator) -> Chosen:
    """Take the highest score and lower its neighbours', again and again."""
    distances, neighbours = nearest_neighbours(features(statistics), NUM_NEIGHBOURS)
    own = statistics.require("el2n").cpu().double()
    scores = (own + ((-FORWARD * distances).exp() * own[neighbours]).sum(1)).tolist()
    factors, links = (-REVERSE * distances).exp().tolist(), neighbours.tolist()
    # An entry is valid while its score is the sample's; every change of a score adds an entry.
    heap = [(-value, index) for index, value in enumerate(scores)]
    heapq.heapify(heap)
    is_chosen = [False] * len(scores)
    chosen: list[int] = []
    while len(chosen) < budget:
        value, index = heapq.heappop(heap)
        if is_chosen[index] or -value != scores[index]:
            continue
        is_chosen[index] = True
        chosen.append(index)
        for neighbour, factor in zip(links[index], factors[index], strict=True):
            if not is_chosen[neighbour]:
                scores[neighbour] -= factor * scores[index]
                heapq.heappush(heap, (-scores[neighbour], neighbour))
    return Chosen(torch.tensor(chosen))


def nearest_neighbours(vectors: Vectors, num_neighbours: int) -> tuple[Tensor, Tensor]:
    """Distances and indices of each sample's nearest others, each (samples, neighbours)."""
    num_neighbours = min(num_neighbours, len(vectors) - 1)
    rows_of, distances, indices = squared_distances(vectors), [], []
    device = vectors.factors[0].device
    for block in torch.arange(len(vectors), device=device).split(rows_in_block(len(vectors))):
        rows = rows_of(block)
        rows[torch.arange(len(block), device=device), block] = torch.inf  # not its own neighbour
        found = rows.topk(num_neighbours, largest=False)
        distances.append(found.values.sqrt().cpu().double())
        indices.append(found.indices.cpu())
    return torch.cat(distances), torch.cat(indices)
