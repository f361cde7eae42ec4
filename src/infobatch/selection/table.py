"""All methods, one row each."""

from __future__ import annotations

from infobatch.selection import (
    ccs,
    contextual_diversity,
    craig,
    d2,
    deepfool,
    dp,
    dq,
    el2n,
    entropy,
    facility_location,
    forgetting,
    glister,
    grand,
    graph_cut,
    herding,
    influence,
    k_center,
    least_confidence,
    margin,
    random,
    tdds,
)
from infobatch.selection.base import Method, by_score

GRADIENTS = ("labels", "probabilities", "features")
"""The last layer's gradients come as factors from these."""

_ROWS = (
    by_score("deepfool", deepfool.score, "Ducoffe & Precioso 2018", ("perturbation",),
             "up to 500 backward passes per sample", "the nearest to a decision boundary"),
    by_score("el2n", el2n.score, "Paul et al. 2021", ("el2n",),
             "a few short trainings, a forward pass each", "the largest errors early in training"),
    by_score("entropy", entropy.score, "Coleman et al. 2020", ("probabilities",),
             "O(n c)", "the most uncertain, by entropy"),
    by_score("forgetting", forgetting.score, "Toneva et al. 2019", ("correct",),
             "a training", "the most often forgotten, or never learned"),
    by_score("grand", grand.score, "Paul et al. 2021", ("grand",),
             "a few short trainings, a backward pass per sample each",
             "the largest gradients early in training"),
    by_score("influence", influence.score, "Koh & Liang 2017", GRADIENTS,
             "O(n c^2 d^2 + (c d)^3)", "those that move the last layer most"),
    by_score("least-confidence", least_confidence.score, "Coleman et al. 2020", ("probabilities",),
             "O(n c)", "the least confident"),
    by_score("margin", margin.score, "Coleman et al. 2020", ("probabilities",),
             "O(n c)", "the smallest gap between the two likeliest classes"),
    by_score("tdds", tdds.score, "Zhang et al. 2024", ("changes",),
             "a training", "those whose predictions move most unsteadily"),
    Method("ccs", ccs.choose, "Zheng et al. 2023", ("el2n",),
           "O(n log n)", "all degrees of difficulty alike, without the hardest"),
    Method("contextual-diversity", contextual_diversity.choose, "Agarwal et al. 2020",
           ("probabilities",), "O(k n c)", "predictions far from each other"),
    Method("craig", craig.choose, "Mirzasoleiman et al. 2020", GRADIENTS,
           "O(n^2 (c + d) log k)", "a weighted subset with nearly the gradient of all"),
    Method("d2", d2.choose, "Maharana et al. 2024", ("features", "el2n"),
           "O(n^2 d)", "difficult samples that are no neighbours"),
    Method("dp", dp.choose, "Yang et al. 2023", GRADIENTS,
           "O(n c^2 d^2 + (c d)^3 + (n - k) n c d)", "what is left when influences cancel out",
           dp.prepare),
    Method("dq", dq.choose, "Zhou et al. 2023", ("features",),
           "O(n^2 d)", "typical and unusual samples alike"),
    Method("facility-location", facility_location.choose, "Mirzasoleiman et al. 2015",
           ("features",), "O(n^2 d log k)", "for every sample one that is like it"),
    Method("glister", glister.choose, "Killamsetty et al. 2021", (*GRADIENTS, "validation"),
           "O(k (n + m) c d)", "what lowers the loss of a validation set"),
    Method("graph-cut", graph_cut.choose, "Iyer et al. 2021", GRADIENTS,
           "O(k n (c + d))", "typical gradients, unlike each other"),
    Method("herding", herding.choose, "Welling 2009", ("features",),
           "O(k n d)", "a subset with the mean of all"),
    Method("k-center", k_center.choose, "Sener & Savarese 2018", ("features",),
           "O(k n d)", "features far from each other"),
    Method("random", random.choose, "-", (),
           "O(n)", "a uniform draw"),
)  # fmt: skip

METHODS: dict[str, Method] = {row.name: row for row in sorted(_ROWS, key=lambda row: row.name)}
"""The methods by name."""


def find(name: object) -> Method:
    """The method of this name, or raise: `find("herding")`."""
    if not isinstance(name, str):
        raise TypeError(f"method is {name!r}, expected one of {', '.join(METHODS)}.")
    if name not in METHODS:
        raise ValueError(f"method is {name!r}, expected one of {', '.join(METHODS)}.")
    return METHODS[name]
