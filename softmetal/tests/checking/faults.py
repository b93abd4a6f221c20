"""The table of seeded faults."""

from __future__ import annotations

from bounds_faults import BOUNDS
from fault_model import Fault
from order_faults import ORDER
from race_faults import RACES
from uninit_faults import UNINIT

FAULTS: tuple[Fault, ...] = (*BOUNDS, *RACES, *ORDER, *UNINIT)
