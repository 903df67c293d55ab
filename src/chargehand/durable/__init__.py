"""What outlives a process: who is alive, orders to those who are, places in line, and the engine of missions."""
