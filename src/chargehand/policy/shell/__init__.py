"""Shell lines and the programs in them, taken apart for the rules."""
