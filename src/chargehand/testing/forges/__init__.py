"""For tests of forges: the conformance suite, and a forge that fails as asked."""
