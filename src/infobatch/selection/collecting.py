"""One pass over a data set with a model gives the statistics that methods choose by.

A collection can be interrupted: with a `path`, what is done so far is in the file, and the same
call goes on from there.
"""

from __future__ import annotations

import sys
import zlib
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from time import monotonic
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset, Subset

from infobatch.errors import StateError, check_whole
from infobatch.selection.deepfool import perturb
from infobatch.selection.statistics import Statistics, is_parquet, read, write
from infobatch.selection.table import METHODS
from infobatch.selection.visits import names

Progress = Callable[[int, int], None]
"""Told how many of how many samples, or runs, are done."""
SECONDS_BETWEEN_SAVES = 60.0
OF_ONE_PASS = {
    "labels", "probabilities", "features", "grand", "el2n", "perturbation", "validation",
}  # fmt: skip


def show(done: int, total: int) -> None:
    """Write progress as one line on standard error that is overwritten: `show(3, 10)`."""
    print(f"\rcollected {done:,} of {total:,}", end="\n" if done == total else "", file=sys.stderr)


def collect(
    model: nn.Module,
    dataset: Dataset[Any],
    methods: Iterable[str] | str,
    *,
    validation: Dataset[Any] | None = None,
    last_layer: nn.Module | None = None,
    batch_size: int = 256,
    num_workers: int = 0,
    progress: Progress | None = show,
    path: str | Path | None = None,
) -> Statistics:
    """Collect what `methods` need, in one pass: `collect(model, dataset, ["herding", "craig"])`.

    The items of the data set are pairs (x, label), and `model(x)` returns logits. The features are
    the inputs of `last_layer`, by default the model's last `nn.Linear`. The model is in evaluation
    mode during the pass. With a `path` (.npz or .parquet) the statistics are saved there, and an
    interrupted pass continues.
    """
    needs = {need for method in names(methods) for need in METHODS[method].needs} | {"labels"}
    if missing := needs - OF_ONE_PASS:
        raise ValueError(
            f"methods need {', '.join(sorted(missing))}, which one pass cannot tell: carry a "
            "selection.Visits through a training loop for forgetting and tdds."
        )
    if "validation" in needs and validation is None:
        raise ValueError("validation is None, expected a data set: glister looks at its loss.")
    validated = None
    if "validation" in needs:
        assert validation is not None
        if path is not None and is_parquet(path):  # said now, not when all is collected
            raise ValueError(f"path is {str(path)!r}, expected .npz with a validation set.")
        fields = {"labels", "probabilities", "features"}
        task = _Pass(model, validation, fields, last_layer, batch_size, num_workers, None, None)
        validated = task.run(None)
        needs -= {"validation"}
    task = _Pass(model, dataset, needs, last_layer, batch_size, num_workers, progress, path)
    return task.run(validated)


def collect_runs(
    train: Callable[[int], nn.Module],
    dataset: Dataset[Any],
    methods: Iterable[str] | str = "el2n",
    *,
    num_runs: int = 10,
    batch_size: int = 256,
    num_workers: int = 0,
    progress: Progress | None = show,
    path: str | Path | None = None,
) -> Statistics:
    """Average EL2N or GraNd over several models, which `train(run)` returns after a short training.

    The paper trains 10 models for 10 to 20 epochs each. With a `path`, each finished run is saved,
    and the same call continues with the next one.
    """
    num_runs = check_whole("num_runs", num_runs, at_least=1)
    averaged = {need for method in names(methods) for need in METHODS[method].needs}
    if wrong := averaged - {"el2n", "grand"}:
        raise ValueError(
            f"methods need {', '.join(sorted(wrong))}, expected what can be averaged over runs: "
            "el2n and grand."
        )
    mark = f"average of {','.join(sorted(averaged))} over runs"
    total, first = _resume_runs(path, mark, len(dataset))  # type: ignore[arg-type]
    for run in range(first, num_runs):
        found = collect(
            train(run), dataset, methods,
            batch_size=batch_size, num_workers=num_workers, progress=None,
        )  # fmt: skip
        if total is None:
            total = found
        else:
            # A running mean, so that the file always holds a finished average.
            means = {
                name: (total.require(name) * run + found.require(name)) / (run + 1)
                for name in averaged
            }
            total |= Statistics(**means)  # type: ignore[arg-type]  # mypy takes ** for num_samples
        if path is not None:
            write(path, total, {"made": mark, "done": str(run + 1)})
        if progress is not None:
            progress(run + 1, num_runs)
    assert total is not None
    return total


def _resume_runs(
    path: str | Path | None, mark: str, num_samples: int
) -> tuple[Statistics | None, int]:
    if path is None or not Path(path).exists():
        return None, 0
    found, notes = read(path)
    _check_same(path, notes.get("made", "something else"), mark)
    if len(found) != num_samples:
        raise StateError(
            f"{path} has {len(found)} samples, expected {num_samples}: {REMEDY}", "other-statistics"
        )
    return found, int(notes["done"])


REMEDY = "give another path, or remove the file to begin anew."


def _check_same(path: str | Path, found: str, expected: str) -> None:
    if found != expected:
        raise StateError(f"{path} holds {found}, expected {expected}: {REMEDY}", "other-statistics")


class _Pass:
    """A pass over a data set in order, which can stop after any batch."""

    def __init__(
        self,
        model: nn.Module,
        dataset: Dataset[Any],
        needs: set[str],
        last_layer: nn.Module | None,
        batch_size: int,
        num_workers: int,
        progress: Progress | None,
        path: str | Path | None,
    ) -> None:
        self.model, self.dataset, self.needs = model, dataset, needs
        self.last_layer = last_layer if last_layer is not None else _last_linear(model)
        self.batch_size = check_whole("batch_size", batch_size, at_least=1)
        self.num_workers = num_workers
        self.progress, self.path = progress, path
        if path is not None:
            is_parquet(path)  # raises on a name it cannot save to, before anything is collected
        self.num_samples = len(dataset)  # type: ignore[arg-type]
        if self.num_samples == 0:
            raise ValueError("dataset is empty, expected at least one sample.")
        self.parameter = next(model.parameters(), torch.empty(0))
        self.rows: dict[str, Tensor] = {}
        self.done = 0

    def run(self, validation: Statistics | None) -> Statistics:
        mark = self._mark()
        self._resume(mark)
        saved = monotonic()
        try:
            for batch in self._batches():
                self._put(self._of_batch(*batch))
                if self.progress is not None:
                    self.progress(self.done, self.num_samples)
                if monotonic() - saved > SECONDS_BETWEEN_SAVES:
                    self._save(mark, None)
                    saved = monotonic()
        finally:  # an interruption, too, leaves what is done in the file
            self._save(mark, validation)
        return self._statistics(validation)

    def _mark(self) -> str:
        """The statistics, the model and the layer that a file was made with."""
        mark = f"{','.join(sorted(self.needs))} of a model with checksum {checksum(self.model)}"
        if "features" not in self.needs:
            return mark
        layers = [name for name, layer in self.model.named_modules() if layer is self.last_layer]
        return f"{mark}, features from layer {', '.join(layers)}"

    def _batches(self) -> Iterator[tuple[Tensor, Tensor]]:
        rest = Subset(self.dataset, range(self.done, self.num_samples))
        loader = DataLoader(rest, self.batch_size, num_workers=self.num_workers)
        for batch in loader if len(rest) else ():
            if not (isinstance(batch, list | tuple) and len(batch) == 2):
                raise TypeError(
                    f"the data set gives a {type(batch).__name__}, expected pairs (x, label)."
                )
            x, labels = batch
            # Checked here: a pass of hours must not end with labels that were cut to whole numbers.
            if labels.dim() != 1 or labels.is_floating_point():
                raise TypeError(
                    f"the data set gives labels of {labels.dtype} and shape "
                    f"{tuple(labels.shape[1:])}, expected the number of a class."
                )
            yield x.to(self.parameter.device), labels

    def _of_batch(self, x: Tensor, labels: Tensor) -> dict[str, Tensor]:
        found = {"labels": labels}
        labels = labels.to(self.parameter.device)
        with _in_evaluation(self.model), torch.no_grad():
            if self.needs & {"probabilities", "features", "el2n"}:
                logits, features = self._forward(x)
                found["probabilities"] = logits.float().softmax(1)
                if features is not None:
                    found["features"] = features
            if "el2n" in self.needs:
                statistics = Statistics(labels=labels, probabilities=found["probabilities"])
                found["el2n"] = statistics.errors().norm(dim=1)
            if "grand" in self.needs:
                found["grand"] = gradient_norms(self.model, x, labels)
            if "perturbation" in self.needs:
                found["perturbation"] = perturb(self.model, x).flatten(1).norm(dim=1)
        return {name: value for name, value in found.items() if name in self.needs}

    def _forward(self, x: Tensor) -> tuple[Tensor, Tensor | None]:
        if "features" not in self.needs:
            return self.model(x), None
        if self.last_layer is None:
            raise ValueError("last_layer is None and the model has no nn.Linear, expected a layer.")
        inputs: list[Tensor] = []
        hook = self.last_layer.register_forward_pre_hook(lambda _, given: inputs.append(given[0]))
        try:
            logits = self.model(x)
        finally:
            hook.remove()
        if len(inputs) != 1:
            raise ValueError(
                f"last_layer was called {len(inputs)} times in a forward pass, expected once: "
                "give the layer whose input are the features."
            )
        return logits, inputs[0].flatten(1).float()

    def _put(self, found: dict[str, Tensor]) -> None:
        end = self.done + len(found["labels"])
        for name, value in found.items():
            if name not in self.rows:
                dtype = torch.int64 if name == "labels" else torch.float32
                self.rows[name] = torch.empty(self.num_samples, *value.shape[1:], dtype=dtype)
            self.rows[name][self.done : end] = value.cpu()
        self.done = end

    def _statistics(self, validation: Statistics | None) -> Statistics:
        rows: dict[str, Any] = {name: rows[: self.done] for name, rows in self.rows.items()}
        return Statistics(self.done, **rows, validation=validation)

    def _save(self, mark: str, validation: Statistics | None) -> None:
        if self.path is not None and self.done:
            write(
                self.path, self._statistics(validation), {"made": mark, "of": str(self.num_samples)}
            )

    def _resume(self, mark: str) -> None:
        if self.path is None or not Path(self.path).exists():
            return
        found, notes = read(self.path)
        _check_same(self.path, notes.get("made", "something else"), mark)
        if notes["of"] != str(self.num_samples):
            raise StateError(
                f"{self.path} is of {notes['of']} samples, expected {self.num_samples}: {REMEDY}",
                "other-statistics",
            )
        self._put({name: getattr(found, name) for name in self.needs})


def gradient_norms(model: nn.Module, x: Tensor, labels: Tensor) -> Tensor:
    """The norm of each sample's gradient of cross entropy by all parameters that are trained."""
    from torch.func import functional_call, grad, vmap

    trained = {name: p.detach() for name, p in model.named_parameters() if p.requires_grad}
    fixed = {name: p.detach() for name, p in model.named_parameters() if not p.requires_grad}
    fixed |= {name: buffer.detach() for name, buffer in model.named_buffers()}

    def loss_of(parameters: dict[str, Tensor], one: Tensor, label: Tensor) -> Tensor:
        logits = functional_call(model, {**parameters, **fixed}, (one.unsqueeze(0),))
        return nn.functional.cross_entropy(logits, label.unsqueeze(0))

    # In chunks: a gradient of all parameters exists for each sample of a chunk.
    gradients_of = vmap(grad(loss_of), in_dims=(None, 0, 0))
    norms = []
    for part, part_labels in zip(x.split(CHUNK), labels.split(CHUNK), strict=True):
        gradients = gradients_of(trained, part, part_labels)
        norms.append(sum(g.flatten(1).square().sum(1) for g in gradients.values()).sqrt())
    return torch.cat(norms)


CHUNK = 16
"""Samples whose whole gradients are in memory at once."""


def checksum(model: nn.Module) -> str:
    """Eight digits that change with any parameter or buffer."""
    value = 0
    for name, tensor in model.state_dict().items():
        bits = tensor.detach().cpu().contiguous().flatten().view(torch.uint8).numpy()
        value = zlib.crc32(bits, zlib.crc32(name.encode(), value))
    return f"{value:08x}"


def _last_linear(model: nn.Module) -> nn.Module | None:
    layers = [layer for layer in model.modules() if isinstance(layer, nn.Linear)]
    return layers[-1] if layers else None


@contextmanager
def _in_evaluation(model: nn.Module) -> Iterator[None]:
    """In evaluation mode, and every layer afterwards as it was."""
    modes = {module: module.training for module in model.modules()}
    model.eval()
    try:
        yield
    finally:
        for module, was_training in modes.items():
            module.training = was_training
