"""The native agent: its loop, model requests, skills and MCP servers; and the patch agent, with the same tools."""
