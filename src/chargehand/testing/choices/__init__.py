"""The conformance suite of choosers."""
