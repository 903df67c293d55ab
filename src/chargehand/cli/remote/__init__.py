"""A Chargehand on another machine, driven by the same commands through its server."""
