"""What the package asks of the machine: files, locks and free space, git as a program, closed directories."""
