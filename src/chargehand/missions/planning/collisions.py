"""Stub."""


def footprint(task, written=()):
    return {*task.make, *task.change, *task.delete, *written}


def collision(a, b):
    from chargehand.core.records import Reason

    both = a & b
    return Reason(code="collision_file", message=f"both change {sorted(both)[0]}") if both else None
