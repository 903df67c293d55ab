"""Reading the notations in which models write patches."""
