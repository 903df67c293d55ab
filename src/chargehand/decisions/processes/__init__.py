"""Markov decision processes and Markov chains over states of a task."""
