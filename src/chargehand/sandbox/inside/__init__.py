"""Programs that run inside a sandbox on a bare interpreter: single files, standard library only."""
