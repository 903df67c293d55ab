"""The face of plan simulations; importing it loads numpy."""

from __future__ import annotations

from chargehand.decisions.forecasting.plan import SAMPLES as SAMPLES
from chargehand.decisions.forecasting.plan import simulate_plan as simulate_plan
