"""Stub."""

import json

import msgspec

from chargehand.core.plans import Plan


def parse_plan(content, name):
    return msgspec.convert(json.loads(content), Plan)
