"""What a person asks for, carried through: attempts, verdicts, promotion, and its undoing."""
