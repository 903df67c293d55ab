"""Missions: attempts, verdicts, promotion, and roll-back."""
