"""The native agent: its loop, conversation and model requests, and the patch agent that uses its tools."""
