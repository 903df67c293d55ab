"""The conformance suite of delivery targets, and a fake target."""
