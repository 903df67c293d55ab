"""For tests of forges: the conformance suite, a forge that fails as asked, and an OAuth server."""
