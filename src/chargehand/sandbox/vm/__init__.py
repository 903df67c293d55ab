"""The `vm` tier's parts: what a machine sees and how QEMU is called, and its way to the host's sockets."""
