"""Routes tasks to agents and models by the outcomes and costs of earlier attempts; pure functions over numpy."""
