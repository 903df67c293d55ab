"""Places where untrusted programs run, and the proof of what this machine can offer."""
