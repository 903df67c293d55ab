"""The package's access to the machine: files, locks, free space, the git program, closed directories."""
