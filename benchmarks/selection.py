"""Choosing a subset once: greedy methods against the matrix products that they need."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from benchmarks.memory import in_fresh_process, resident
from benchmarks.table import Aim, Row, Section
from benchmarks.timing import best_times
from infobatch.selection import METHODS, Statistics
from infobatch.selection.graph_cut import cut
from infobatch.selection.vectors import Vectors

KEEP = 0.1
MOST_GB = 8
PER_CLASS = ("herding", "k-center", "graph-cut", "facility-location")

Floats = NDArray[np.float32]


def section(
    size: int = 50_000,
    dimensions: int = 512,
    peer_size: int = 5_000,
    per_class_size: int = 1_280_000,
    num_classes: int = 1_000,
) -> Section:
    rows = [*over_all(size, dimensions), *against_peers(peer_size, dimensions)]
    for name in PER_CLASS:
        seconds, gigabytes = in_fresh_process(per_class, name, per_class_size, num_classes)
        what = f"{name} per class, N = {per_class_size:,}, {num_classes:,} classes x 64"
        rows.append(Row(what, seconds, "s"))
        rows.append(Row(f"{what}: peak of a process", gigabytes, "GB", aim=Aim(MOST_GB)))
    return Section(
        "Choosing a subset once",
        "A tenth of the samples, in float32. `its products` are as many products of the features "
        "with a vector as samples are chosen: each choice depends on the one before. `one product` "
        "is the same number of multiplications in a single product of matrices, the least that "
        "is possible where the next choices can be foreseen. `NumPy script` is the method as one "
        "would write it down. `submodlib` (C++, lazy greedy for facility location) gets the matrix "
        "of all similarities, whose time is counted; it is left out where it is not installed.",
        rows,
    )


def clustered(size: int, dimensions: int) -> Tensor:
    """Features as after a ReLU, in ten clusters."""
    rng = torch.Generator().manual_seed(1)
    centres = torch.randn(10, dimensions, generator=rng)
    noise = torch.randn(size, dimensions, generator=rng)
    return noise.add_(centres[torch.randint(10, (size,), generator=rng)]).relu_()


# Over all samples ---------------------------------------------------------------------------------


def over_all(size: int, dimensions: int) -> list[Row]:
    features, budget = clustered(size, dimensions), round(KEEP * size)
    ours = {name: partial(choose, features, budget) for name, choose in OURS.items()}
    scripts = {
        f"NumPy {name}": partial(script, features.numpy(), budget)
        for name, script in SCRIPTS.items()
    }
    products: dict[str, Callable[[], object]] = {
        "its products": partial(products_in_turn, features, budget),
        "one product": lambda: features @ features[:budget].T,
    }
    times = best_times(1, {**products, **ours, **scripts})
    return [
        Row(
            f"{name}, N = {size:,} x {dimensions}",
            times[name],
            "s",
            {**{other: times[other] for other in products}, "NumPy script": times[f"NumPy {name}"]},
            Aim(3.0, "its products"),
        )
        for name in ours
    ]


def products_in_turn(features: Tensor, budget: int) -> None:
    for row in features[:budget]:
        features @ row


def by_method(name: str, features: Tensor, budget: int) -> Tensor:
    return METHODS[name](Statistics(features=features), budget).indices


def cut_features(features: Tensor, budget: int) -> Tensor:
    """Graph cut on the features themselves, as the scripts and peers do it."""
    return cut(Vectors((features,)), budget)


OURS: dict[str, Callable[[Tensor, int], Tensor]] = {
    "herding": partial(by_method, "herding"),
    "k-center": partial(by_method, "k-center"),
    "graph-cut": cut_features,
}


# As one would write them down in NumPy ------------------------------------------------------------


def numpy_herding(features: Floats, budget: int) -> list[int]:
    mean, norms = features.mean(0), (features**2).sum(1)
    total = np.zeros_like(mean)
    chosen: list[int] = []
    for step in range(budget):
        distances = norms - 2 * (features @ ((step + 1) * mean - total))
        distances[chosen] = np.inf
        chosen.append(int(distances.argmin()))
        total += features[chosen[-1]]
    return chosen


def numpy_k_center(features: Floats, budget: int, start: int = 0) -> list[int]:
    norms, chosen = (features**2).sum(1), [start]
    nearest = np.full(len(features), np.inf, dtype=np.float32)
    while len(chosen) < budget:
        last = chosen[-1]
        nearest = np.minimum(nearest, norms + norms[last] - 2 * (features @ features[last]))
        nearest[chosen] = -np.inf
        chosen.append(int(nearest.argmax()))
    return chosen


def numpy_graph_cut(features: Floats, budget: int) -> list[int]:
    unit = features / np.linalg.norm(features, axis=1, keepdims=True)
    gains = 0.5 * len(unit) + 0.5 * (unit @ unit.sum(0))
    chosen: list[int] = []
    for _ in range(budget):
        chosen.append(int(gains.argmax()))
        gains -= 1 + unit @ unit[chosen[-1]]
        gains[chosen[-1]] = -np.inf
    return chosen


SCRIPTS: dict[str, Callable[[Floats, int], list[int]]] = {
    "herding": numpy_herding,
    "k-center": numpy_k_center,
    "graph-cut": numpy_graph_cut,
}


# Against a peer, which needs the whole matrix -----------------------------------------------------


def against_peers(size: int, dimensions: int) -> list[Row]:
    features, budget = clustered(size, dimensions), round(KEEP * size)
    ours: dict[str, Callable[[], Any]] = {
        "facility-location": partial(by_method, "facility-location", features, budget),
        "graph-cut": partial(cut_features, features, budget),
    }
    peers = {
        f"submodlib {name}": partial(peer, features.numpy(), budget)
        for name, peer in submodlib_peers().items()
    }
    times = best_times(2, {**ours, **peers})
    return [
        Row(
            f"{name}, N = {size:,} x {dimensions}",
            times[name],
            "s",
            {"submodlib": times[f"submodlib {name}"]} if peers else {},
        )
        for name in ours
    ]


def submodlib_peers() -> dict[str, Callable[[Floats, int], list[int]]]:
    """The methods of submodlib that we have too; none where it is not installed."""
    try:
        from submodlib import FacilityLocationFunction, GraphCutFunction
    except ImportError:
        return {}

    def facility_location(features: Floats, budget: int) -> list[int]:
        of = FacilityLocationFunction(
            n=len(features), mode="dense", sijs=similarities(features), separate_rep=False
        )
        return indices_of(of.maximize(budget=budget, optimizer="LazyGreedy", show_progress=False))

    def graph_cut(features: Floats, budget: int) -> list[int]:
        of = GraphCutFunction(
            n=len(features), mode="dense", lambdaVal=1.0, ggsijs=similarities(features)
        )
        pairs = of.maximize(
            budget=budget,
            optimizer="NaiveGreedy",  # submodlib's lazy one is for functions that never decrease
            stopIfZeroGain=False,
            stopIfNegativeGain=False,
            show_progress=False,
        )
        return indices_of(pairs)

    return {"facility-location": facility_location, "graph-cut": graph_cut}


def similarities(features: Floats) -> Floats:
    unit = features / np.linalg.norm(features, axis=1, keepdims=True)
    matrix: Floats = 0.5 + 0.5 * (unit @ unit.T)
    return matrix


def indices_of(pairs: list[tuple[int, float]]) -> list[int]:
    return [int(index) for index, _ in pairs]


# Per class ----------------------------------------------------------------------------------------


def per_class(name: str, size: int, num_classes: int) -> tuple[float, float]:
    """Seconds to choose a tenth of each class, and the peak of the process in GB."""
    rng = torch.Generator().manual_seed(1)
    labels = torch.arange(size) % num_classes
    given: dict[str, Any] = {"features": torch.randn(size, 64, generator=rng), "labels": labels}
    if "probabilities" in METHODS[name].needs:
        probabilities = torch.rand(size, num_classes, generator=rng)
        given["probabilities"] = probabilities.div_(probabilities.sum(1, keepdim=True))
    statistics = Statistics(**given)
    times = best_times(1, {name: lambda: METHODS[name](statistics, round(KEEP * size), labels)})
    return times[name], resident("VmHWM") / 1e9
