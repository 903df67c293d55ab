"""What outlives a process: who is alive, orders to those who are, and the engine that schedules missions."""

from chargehand.durable._engine import Engine
from chargehand.durable._leases import LeasedMembership, LeasedWorkers
from chargehand.durable._orders import Order, Take, give_order, taking_orders
from chargehand.durable._workers import LocalMembership, LocalWorkers, Member, Membership, Role, Workers

__all__ = [
    "Engine",
    "LeasedMembership",
    "LeasedWorkers",
    "LocalMembership",
    "LocalWorkers",
    "Member",
    "Membership",
    "Order",
    "Role",
    "Take",
    "Workers",
    "give_order",
    "taking_orders",
]
