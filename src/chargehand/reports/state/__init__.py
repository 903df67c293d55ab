"""The parts of a state directory: its projects, the space that is needed, and the limits of its machine."""
