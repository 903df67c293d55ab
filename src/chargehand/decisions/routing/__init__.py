"""Routes tasks to agents and models by what earlier attempts achieved and cost; pure functions over numpy."""
