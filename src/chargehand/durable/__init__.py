"""What outlives a process: who is alive, orders to those who are, places in line, and the engine of missions."""

from chargehand.durable._actions import ActionHold, ActionOutput, ActionPlace, ActionPlaces, OutputLine
from chargehand.durable._engine import Engine
from chargehand.durable._keeper import Kept, LineCutter, OnLine, OutputStream, run_kept
from chargehand.durable._leases import LeasedMembership, LeasedWorkers
from chargehand.durable._orders import Order, Take, give_order, taking_orders
from chargehand.durable._slots import Gate, Slots, Ticket
from chargehand.durable._workers import LocalMembership, LocalWorkers, Member, Membership, Role, Workers

__all__ = [
    "ActionHold",
    "ActionOutput",
    "ActionPlace",
    "ActionPlaces",
    "Engine",
    "Gate",
    "Kept",
    "LeasedMembership",
    "LeasedWorkers",
    "LineCutter",
    "LocalMembership",
    "LocalWorkers",
    "Member",
    "Membership",
    "OnLine",
    "Order",
    "OutputLine",
    "OutputStream",
    "Role",
    "Slots",
    "Take",
    "Ticket",
    "Workers",
    "give_order",
    "run_kept",
    "taking_orders",
]
