"""Results: judging the results of attempts and tasks, and delivering them."""
