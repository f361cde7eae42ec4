"""How far a linear filter gets in `pet-faces`: a floor for its loss on held-out images.

The filter (Wiener's) knows the mean of the training images, how their colours go together, and how
strong each frequency is. A network that has learned shapes must be clearly better.

python results/linear_denoiser.py
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.utils.data import TensorDataset

from infobatch_lab.images import default_folder
from infobatch_lab.settings import settings
from infobatch_lab.tasks import load
from infobatch_lab.tasks.diffusion import Diffusion, inputs_of, shares


class LinearDenoiser(nn.Module):
    """Predicts v by the best filter for images of this mean, these colours and this spectrum."""

    def __init__(self, images: Tensor) -> None:
        super().__init__()
        self.mean = nn.Parameter(images.mean(0))
        rest = images - self.mean
        pixels = rest.transpose(0, 1).flatten(1)
        self.colours = nn.Parameter(torch.linalg.eigh(pixels @ pixels.T)[1].T)
        self.power = nn.Parameter(self.spectrum(rest).abs().square().mean(0))

    def spectrum(self, images: Tensor) -> Tensor:
        """Of uncorrelated colours, the strength of each frequency."""
        mixed = torch.einsum("kc,nchw->nkhw", self.colours, images)
        found: Tensor = torch.fft.fft2(mixed, norm="ortho")
        return found

    def forward(self, x: Tensor, steps: Tensor) -> Tensor:
        image_share, noise_share = shares(steps)
        gain = image_share * self.power / (image_share**2 * self.power + noise_share**2)
        found = torch.fft.ifft2(gain * self.spectrum(x - image_share * self.mean), norm="ortho")
        image = self.mean + torch.einsum("kc,nkhw->nchw", self.colours, found.real)
        predicted: Tensor = (image_share * x - image) / noise_share
        return predicted


def main() -> None:
    task = load("pet-faces", default_folder())
    assert isinstance(task, Diffusion)
    assert isinstance(task.train, TensorDataset)
    images = inputs_of(task.train.tensors[0])
    network = LinearDenoiser(torch.cat([images, images.flip(3)]))
    print(task.evaluate(network, settings("pet-faces"), final=False))


if __name__ == "__main__":
    main()
