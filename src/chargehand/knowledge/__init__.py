"""Knowledge about a project that missions start with."""
