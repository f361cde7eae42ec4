"""The central claim, measured: a pruned epoch's gradient is, on average, that of full training.

At some points of a full training the gradient of every sample is computed. Then each rule draws an
epoch many times, and the gradient of each, sum of weight x gradient over N, is compared with the
full one (Fig. 1 and Eq. 9 of the paper): `python -m infobatch_lab.gradients results`.
"""

from __future__ import annotations

import argparse
import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.func import functional_call, grad, vmap
from torch.nn.functional import cross_entropy

from infobatch import Pruner
from infobatch_lab import rules
from infobatch_lab.augment import mean_and_std, normalise
from infobatch_lab.errors import optional
from infobatch_lab.images import default_folder, read_digits
from infobatch_lab.provenance import provenance
from infobatch_lab.settings import settings
from infobatch_lab.tasks.classification import Classification
from infobatch_lab.training import Training

EPOCHS = (0, 4, 9, 19, 29)
"""Gradients are measured at the end of these epochs, of 40."""


def per_sample_gradients(model: torch.nn.Module, inputs: Tensor, labels: Tensor) -> Tensor:
    """The gradient of each sample, a row each, with the model in evaluation mode."""
    model.eval()
    parameters = {name: p.detach() for name, p in model.named_parameters()}
    buffers = dict(model.named_buffers())

    def loss(parameters: dict[str, Tensor], x: Tensor, y: Tensor) -> Tensor:
        logits = functional_call(model, (parameters, buffers), (x[None],))
        return cross_entropy(logits, y[None])

    of_batch = vmap(grad(loss), in_dims=(None, 0, 0))
    rows = [
        torch.cat([g.flatten(1) for g in of_batch(parameters, x, y).values()], dim=1)
        for x, y in zip(inputs.split(128), labels.split(128), strict=True)
    ]
    return torch.cat(rows)


def drawn_weights(scores: Tensor, rule: str, num_draws: int) -> Tensor:
    """The weights of all samples, a row for each draw of an epoch; 0 where one is skipped."""
    rows = torch.zeros(num_draws, len(scores))
    for seed in range(num_draws):
        pruner = Pruner(len(scores), num_epochs=2, delta=1, rule=rules.create(rule), seed=seed)
        pruner.update(scores, torch.arange(len(scores)))
        rows[seed, pruner.plan.indices] = pruner.plan.weights
    return rows


def compare(gradients: Tensor, weights: Tensor) -> dict[str, float]:
    """Compare the gradient of drawn epochs with the full one.

    >>> compare(torch.eye(3), torch.ones(5, 3))["relative_bias"]
    0.0
    """
    num_draws, num_samples = weights.shape
    full = gradients.mean(0)
    drawn = weights @ gradients / num_samples
    mean = drawn.mean(0)
    spread = float((drawn - mean).square().sum() / max(1, num_draws - 1)) ** 0.5
    one = weights[0] > 0
    kept = weights[0, one, None] * gradients[one]
    return {
        "relative_bias": _norm(mean - full) / _norm(full),
        # What the mean of so many draws of an unbiased rule would still be off by.
        "relative_bias_by_chance": spread / math.sqrt(num_draws) / _norm(full),
        "angle_of_mean": _angle(mean, full),
        "mean_angle": sum(_angle(row, full) for row in drawn) / num_draws,
        "length": _norm(mean) / _norm(full),
        # Over draws of an epoch; and over the samples of one epoch, as appendix B.3 has it.
        "std_to_expectation": spread / _norm(mean),
        "noise_to_signal": float(kept.var(0, correction=0).sum()) ** 0.5 / _norm(kept.mean(0)),
    }


def _norm(vector: Tensor) -> float:
    return float(vector.double().norm())


def _angle(one: Tensor, other: Tensor) -> float:
    """The angle in degrees; computed by the half angle, which is exact for small ones too."""
    u, v = one.double() / _norm(one), other.double() / _norm(other)
    return math.degrees(2 * math.atan2(_norm(u - v), _norm(u + v)))


def measure(
    *, seed: int, num_draws: int, epochs: Sequence[int] = EPOCHS, num_epochs: int = 40
) -> list[dict[str, Any]]:
    """Train on digits, and compare every rule's gradient at the end of each of these epochs."""
    chosen = settings("digits", rule="full", seed=seed, epochs=num_epochs)
    data = read_digits(default_folder(), lambda *_: None)
    training = Training(chosen, Classification(data))
    inputs = normalise(data.train.images, *mean_and_std(data.train.images))
    found = []
    for progress in training.steps():
        if progress.finished is None or progress.epoch not in epochs:
            continue
        gradients = per_sample_gradients(training.model, inputs, data.train.labels)
        scores = training.train_data.scores
        for rule in rules.NAMES:
            weights = drawn_weights(scores, rule, num_draws)
            found.append(
                {
                    "format": "gradients-1",
                    "data": "digits",
                    "rule": rule,
                    "seed": seed,
                    "model": chosen.model,
                    "epoch": progress.epoch,
                    "num_draws": num_draws,
                    "kept_fraction": float((weights > 0).float().mean()),
                    **compare(gradients, weights),
                }
            )
    return found


def draw_figure(lines: list[dict[str, Any]], path: Path) -> None:
    """Draw bias and noise by epoch for every rule: `draw_figure(lines, Path("gradients.png"))`."""
    plt = optional("matplotlib.pyplot")
    figure, axes = plt.subplots(1, 2, figsize=(10, 4.2), layout="constrained")
    epochs = sorted({line["epoch"] for line in lines})
    markers = "osD^vP*Xd"
    panels = (
        ("relative_bias", "bias of the mean gradient / full gradient"),
        ("noise_to_signal", "noise to signal of a sample (B.3)"),
    )
    for axis, (name, title) in zip(axes, panels, strict=True):
        for number, rule in enumerate(rules.NAMES):
            if rule == "full" and name == "relative_bias":
                continue  # none, which no logarithm shows
            values = [_mean_of(lines, rule, epoch, name) for epoch in epochs]
            style = {"color": f"C{number}", "marker": markers[number % len(markers)]}
            axis.plot(epochs, values, label=rule, **style)
        axis.set(xlabel="epoch", title=title, yscale="log")
        axis.spines[["top", "right"]].set_visible(False)
    chance = [_mean_of(lines, "mean", epoch, "relative_bias_by_chance") for epoch in epochs]
    (by_chance,) = axes[0].plot(epochs, chance, "k:", label="mean, by chance")
    axes[1].yaxis.set_major_formatter("{x:g}")
    axes[1].yaxis.set_minor_formatter("{x:g}")
    handles = [*axes[1].get_lines(), by_chance]
    figure.legend(handles=handles, loc="outside right center", frameon=False)
    figure.savefig(path, dpi=150)
    plt.close(figure)


def _mean_of(lines: list[dict[str, Any]], rule: str, epoch: int, name: str) -> float:
    values = [line[name] for line in lines if line["rule"] == rule and line["epoch"] == epoch]
    return float(sum(values) / len(values))


def main() -> None:
    """Measure, and write gradients.jsonl and gradients.png."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("out", type=Path)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--draws", type=int, default=400)
    options = parser.parse_args()
    lines = []
    for seed in range(options.seeds):
        lines += measure(seed=seed, num_draws=options.draws)
    command = f"python -m infobatch_lab.gradients {options.out}"
    stamp = {
        **provenance(),
        "command": f"{command} --seeds {options.seeds} --draws {options.draws}",
    }
    options.out.mkdir(parents=True, exist_ok=True)
    text = "".join(json.dumps({**line, **stamp}) + "\n" for line in lines)
    (options.out / "gradients.jsonl").write_text(text)
    draw_figure(lines, options.out / "gradients.png")


if __name__ == "__main__":
    main()
