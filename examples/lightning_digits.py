"""PyTorch Lightning with InfoBatch, on digits: `python examples/lightning_digits.py`.

(A script named lightning.py would be imported in place of Lightning.)
"""

from __future__ import annotations

import argparse
from typing import Any

import lightning as L  # noqa: N812
import torch
from sklearn.datasets import load_digits
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset, random_split

import infobatch
from infobatch.integrations.lightning import InfoBatchCallback


class Classifier(L.LightningModule):
    def __init__(self, train_data: infobatch.InfoBatch[Any]) -> None:
        super().__init__()
        self.train_data = train_data
        self.network = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 10))
        self.criterion = nn.CrossEntropyLoss(reduction="none")

    def training_step(self, batch: list[Tensor], batch_idx: int) -> Tensor:
        x, y = batch
        return self.train_data.update(self.criterion(self.network(x), y))

    def validation_step(self, batch: list[Tensor], batch_idx: int) -> None:
        x, y = batch
        accuracy = (self.network(x).argmax(1) == y).float().mean()
        self.log("accuracy", accuracy, prog_bar=True, sync_dist=True)

    def configure_optimizers(self) -> Any:
        optimizer = torch.optim.SGD(self.parameters(), lr=0.1, momentum=0.9)
        num_steps = int(self.trainer.estimated_stepping_batches)
        schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 0.2, total_steps=num_steps)
        return [optimizer], [{"scheduler": schedule, "interval": "step"}]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--epochs", type=int, default=40)
    parser.add_argument("--devices", type=int, default=1)
    parser.add_argument("--folder", default=".", help="for logs and checkpoints")
    parser.add_argument("--resume", help="a checkpoint of Lightning's")
    options = parser.parse_args()

    L.seed_everything(0)
    images, labels = load_digits(return_X_y=True)
    digits = TensorDataset(torch.tensor(images).float() / 16, torch.tensor(labels))
    to_train, to_test = random_split(digits, [0.8, 0.2])

    train_data = infobatch.InfoBatch(to_train, options.epochs)
    loader = DataLoader(train_data, batch_sampler=train_data.batches(32))
    trainer = L.Trainer(
        max_epochs=options.epochs,
        devices=options.devices,
        default_root_dir=options.folder,
        log_every_n_steps=10,
        callbacks=[InfoBatchCallback(train_data)],
    )
    model = Classifier(train_data)
    test_loader = DataLoader(to_test, batch_size=360)
    trainer.fit(model, loader, test_loader, ckpt_path=options.resume)
    (result,) = trainer.validate(model, test_loader, verbose=False)
    saved = train_data.savings.fraction
    print(f"accuracy {result['accuracy']:.1%}, {saved:.0%} of the samples saved")


if __name__ == "__main__":
    main()
