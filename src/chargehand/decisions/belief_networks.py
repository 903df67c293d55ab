"""Belief networks for other packages: records, files, and the shipped ones; loads no numpy."""

from __future__ import annotations

from chargehand.decisions.beliefs.evidence import read_evidence as read_evidence
from chargehand.decisions.beliefs.formats import read_cases as read_cases
from chargehand.decisions.beliefs.formats import read_network as read_network
from chargehand.decisions.beliefs.formats import write_network as write_network
from chargehand.decisions.beliefs.network import BeliefNetwork as BeliefNetwork
from chargehand.decisions.beliefs.network import BeliefNode as BeliefNode
from chargehand.decisions.beliefs.shipping import SHIPPED as SHIPPED
from chargehand.decisions.beliefs.shipping import shipped_network as shipped_network
