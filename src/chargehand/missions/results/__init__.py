"""Results: judging what attempts and tasks left, and bringing it to where it belongs."""
