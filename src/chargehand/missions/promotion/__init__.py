"""Moving a mission's branch: rebase onto a branch that moved on, promotion, roll-back."""
