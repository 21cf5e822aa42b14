"""Taking the closed channels out for good, with proof."""

from depl0.surgery.certificate import Certificate
from depl0.surgery.extraction import extract
from depl0.surgery.record import CompactRecord, record_of
from depl0.surgery.scaling import SiteScaling

__all__ = ["Certificate", "CompactRecord", "SiteScaling", "extract", "record_of"]
