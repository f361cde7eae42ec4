"""The metric of a task: a number with a direction, a unit and a margin."""

from __future__ import annotations

from dataclasses import dataclass

MINUS = "\N{MINUS SIGN}"


@dataclass(frozen=True)
class Metric:
    """How a metric is read. A run's line holds the value before `scale`.

    >>> accuracy = Metric("accuracy", "%", scale=100, margin=0.5)
    >>> accuracy.text(0.9925), accuracy.signed(-0.001), accuracy.difference_unit
    ('99.25', '-0.10', 'points')
    """

    name: str
    """Its key in the lines of runs."""
    unit: str = ""
    """The unit of the value as it is shown; empty for a plain number."""
    higher_is_better: bool = True
    scale: float = 1.0
    """The factor from a value to what is shown: 100 for a fraction shown in percent."""
    margin: float = 0.01
    """The loss that still counts as lossless, as it is shown."""
    decimals: int = 2
    counts_samples: bool = False
    """Whether it is a number of test samples over all of them, so that its steps are known."""
    label: str = ""
    """Its name for people, where `name` does not do: "mIoU"."""

    @property
    def difference_unit(self) -> str:
        """The unit of a difference between two values."""
        return "points" if self.unit == "%" else self.unit

    @property
    def title(self) -> str:
        """The head of a column: `accuracy, %`."""
        return f"{self.words}, {self.unit}" if self.unit else self.words

    @property
    def words(self) -> str:
        """The name for people."""
        return self.label or self.name.replace("_", " ")

    @property
    def difference_title(self) -> str:
        """The head of the column of differences."""
        unit = self.difference_unit
        return f"difference to full, {unit}" if unit else "difference to full"

    @property
    def sign(self) -> int:
        """1 where more is better, -1 where less is."""
        return 1 if self.higher_is_better else -1

    def text(self, value: float) -> str:
        """A value as it is shown, without its unit."""
        return f"{value * self.scale:.{self.decimals}f}"

    def signed(self, difference: float) -> str:
        """A difference as it is shown, with a sign."""
        return f"{difference * self.scale:+.{self.decimals}f}"

    def full_text(self, value: float) -> str:
        """A value with its unit."""
        return f"{self.text(value)}{self.unit and ' ' * (self.unit != '%') + self.unit}"


ACCURACY = Metric("accuracy", "%", scale=100.0, margin=0.5, counts_samples=True)
