"""One module for each measurement that runs on every server."""

from bench.comparison.measurements.base import Figure, Measurement, Round, Row
from bench.comparison.measurements.disconnect import DISCONNECT
from bench.comparison.measurements.duplicates import DUPLICATES
from bench.comparison.measurements.restart import RESTART
from bench.comparison.measurements.streams import STREAMS
from bench.comparison.measurements.swapped import SWAPPED
from bench.comparison.measurements.warmth import WARMTH

MEASUREMENTS: tuple[Measurement, ...] = (
    WARMTH,
    STREAMS,
    RESTART,
    DISCONNECT,
    DUPLICATES,
    SWAPPED,
)

__all__ = ["MEASUREMENTS", "Figure", "Measurement", "Round", "Row"]
