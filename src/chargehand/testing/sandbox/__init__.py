"""The conformance suite of sandbox tiers, for authors of tiers; see docs/how-to/write-a-tier.md."""
