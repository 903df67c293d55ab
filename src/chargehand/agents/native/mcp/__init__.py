"""MCP servers as tools of the native agent."""
