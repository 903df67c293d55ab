"""The `vm` tier's parts: a machine's mounts, QEMU's command line, and the relay to the host's sockets."""
