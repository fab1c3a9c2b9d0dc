"""How values are spread, in memory that does not grow with how many there are."""

from __future__ import annotations

import math
import sys
from collections import Counter


class Histogram:
    """Counts values in buckets whose width grows with the value: percentiles within a precision.

    Bucket `i` holds `(g**(i-1), g**i]` with `g = (1 + precision) / (1 - precision)`, and stands for
    the value that is off by the same part at both ends. So there are at most `log(max / min) / g'`
    buckets, with `g' = log(g)`, about twice the precision: at 0.01 about 115 for each factor of 10.
    Count, mean and maximum are exact. Values below the least normal float, 2.2e-308, count as 0.

    Args:
        precision: the most by which a percentile is off, as part of the true value; in `[1e-6,
            0.5]`.

    Raises:
        ValueError: the precision is out of its range.

    Source: the buckets of Masson, Rim and Lee, "DDSketch: A Fast and Fully-Mergeable Quantile
    Sketch with Relative-Error Guarantees" (PVLDB 2019).

    Example:
        >>> times = Histogram(precision=0.01)
        >>> for value in (0, 1, 2, 3, 1000): times.add(value)
        >>> times.count, times.mean, times.max, abs(times.percentile(60) / 2 - 1) <= 0.01
        (5, 201.2, 1000, True)
    """

    def __init__(self, precision: float = 0.01) -> None:
        if not 1e-6 <= precision <= 0.5:
            raise ValueError(f"precision is within [1e-06, 0.5], got {precision}")
        self.precision = precision
        self.count = 0
        self._log_g = math.log1p(precision) - math.log1p(-precision)
        self._zeros = 0
        self._buckets: Counter[int] = Counter()
        self._least, self._most = math.inf, 0.0
        # The sum as a whole number of 2**-1074, of which every float is a multiple: no rounding.
        self._sum = 0

    @property
    def mean(self) -> float:
        """The mean, rounded once; `ValueError` if no value was added."""
        self._need_values()
        return self._sum / (self.count << 1074)

    @property
    def max(self) -> float:
        """The greatest value; `ValueError` if no value was added."""
        self._need_values()
        return self._most

    def add(self, value: float) -> None:
        """Counts a value.

        Args:
            value: at least 0 and finite.

        Raises:
            ValueError: it is neither. Nothing changes.
        """
        if not 0 <= value <= sys.float_info.max:
            raise ValueError(f"a value is at least 0 and finite, got {value}")
        if value < sys.float_info.min:
            self._zeros += 1
        else:
            self._buckets[math.ceil(math.log(value) / self._log_g)] += 1
        numerator, denominator = value.as_integer_ratio()
        self._sum += numerator << 1075 - denominator.bit_length()
        self.count += 1
        if value > self._most:
            self._most = value
        if value < self._least:
            self._least = value

    def percentile(self, p: float) -> float:
        """Returns a value within the precision of the least that `p` percent do not exceed.

        Args:
            p: 0 to 100; 0 asks for the least value, 100 for the greatest.

        Raises:
            ValueError: `p` is out of its range, or no value was added.

        Example:
            >>> one = Histogram()
            >>> one.add(7)
            >>> one.percentile(50)
            7
        """
        if not 0 <= p <= 100:
            raise ValueError(f"a percentile is within [0, 100], got {p}")
        self._need_values()
        # Of the sorted values it is the one at this place, from 1.
        place = max(math.ceil(p * self.count / 100), 1)
        seen = self._zeros
        if place <= seen:
            return 0
        for bucket in sorted(self._buckets):
            seen += self._buckets[bucket]
            if seen >= place:
                break
        return min(max(self._stands_for(bucket), self._least), self._most)

    def merge(self, other: Histogram) -> None:
        """Counts all values of another histogram too, as if they had been added here.

        Raises:
            ValueError: its precision is another. Nothing changes.
        """
        if other.precision != self.precision:
            raise ValueError(f"only equal precisions merge: {self.precision}, {other.precision}")
        self.count += other.count
        self._zeros += other._zeros
        self._buckets.update(other._buckets)
        self._least, self._most = min(self._least, other._least), max(self._most, other._most)
        self._sum += other._sum

    def _stands_for(self, bucket: int) -> float:
        # The root is squared since the power itself may lie above all floats, where exp() fails.
        root = math.exp((bucket - 1) * self._log_g / 2)
        return (1 + self.precision) * root * root

    def _need_values(self) -> None:
        if not self.count:
            raise ValueError("no value was added, asked for one")
