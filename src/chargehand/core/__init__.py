"""The vocabulary: records, events, errors, ids, ports, clock and configuration. No I/O."""
