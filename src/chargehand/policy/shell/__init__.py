"""Parses shell lines and the programs in them for the rules."""
