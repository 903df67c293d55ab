"""What a person asks for, carried through: attempts, verdicts, promotion, and its undoing."""

from chargehand.missions._flow import MissionFlow
from chargehand.missions._journal import Journal, Watch, ignore
from chargehand.missions._liveness import Liveness
from chargehand.missions._missions import Look, Missions, find_checkpoint
from chargehand.missions._promote import PREFIX, Promoter, mission_ref
from chargehand.missions._reader import DepotReader
from chargehand.missions._services import Registries, Services, Tier
from chargehand.missions._system import system_errors

__all__ = [
    "PREFIX",
    "DepotReader",
    "Journal",
    "Liveness",
    "Look",
    "MissionFlow",
    "Missions",
    "Promoter",
    "Registries",
    "Services",
    "Tier",
    "Watch",
    "find_checkpoint",
    "ignore",
    "mission_ref",
    "system_errors",
]
