"""Wires the product from its configuration; the only place that knows concrete classes."""
