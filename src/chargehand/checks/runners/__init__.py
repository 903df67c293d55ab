"""Test runners: a module for each, and the table of them all."""
