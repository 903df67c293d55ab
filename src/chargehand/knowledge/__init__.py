"""Knowledge that missions start with: the repository map, and lessons from earlier missions."""
