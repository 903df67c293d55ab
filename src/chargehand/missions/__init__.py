"""What a person asks for, carried through: attempts, verdicts, promotion, and its undoing."""

from chargehand.missions._branching import Branched, Branching, StoppedError
from chargehand.missions._calls import called
from chargehand.missions._causes import CAUSE_CLASSES, Cause, CauseClass, attempt_cause, mission_cause
from chargehand.missions._context import acts_prefix, parse_act
from chargehand.missions._contracts import FAILING_TEST
from chargehand.missions._control import Control, Controls
from chargehand.missions._flow import MissionFlow
from chargehand.missions._fork import Edit, ForkPoint, fork
from chargehand.missions._formatting import FormatRun, Formatted, run_formatters
from chargehand.missions._journal import Journal, Watch, ignore
from chargehand.missions._missions import Look, Missions, create_mission, find_checkpoint
from chargehand.missions._model_stats import MODEL_DEFINITIONS, ModelStats, gather_models
from chargehand.missions._promote import PREFIX, Promoter, mission_ref, nothing_promoted, rolled_back_already
from chargehand.missions._reader import DepotReader
from chargehand.missions._services import Egress, OpenEgress, OpenGateway, Registries, Services, Tier, cores
from chargehand.missions._stats import AttemptStats, Cost, Spread, Stats, gather
from chargehand.missions._steer import Steering
from chargehand.missions._system import system_errors
from chargehand.missions._transcript import Line, transcript

__all__ = [
    "CAUSE_CLASSES",
    "FAILING_TEST",
    "MODEL_DEFINITIONS",
    "PREFIX",
    "AttemptStats",
    "Branched",
    "Branching",
    "Cause",
    "CauseClass",
    "Control",
    "Controls",
    "Cost",
    "DepotReader",
    "Edit",
    "Egress",
    "ForkPoint",
    "FormatRun",
    "Formatted",
    "Journal",
    "Line",
    "Look",
    "MissionFlow",
    "Missions",
    "ModelStats",
    "OpenEgress",
    "OpenGateway",
    "Promoter",
    "Registries",
    "Services",
    "Spread",
    "Stats",
    "Steering",
    "StoppedError",
    "Tier",
    "Watch",
    "acts_prefix",
    "attempt_cause",
    "called",
    "cores",
    "create_mission",
    "find_checkpoint",
    "fork",
    "gather",
    "gather_models",
    "ignore",
    "mission_cause",
    "mission_ref",
    "nothing_promoted",
    "parse_act",
    "rolled_back_already",
    "run_formatters",
    "system_errors",
    "transcript",
]
