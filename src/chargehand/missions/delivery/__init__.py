"""The targets to which a promoted commit is delivered, one after the other."""
