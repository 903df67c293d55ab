"""The MCP server: missions for other agents and outside orchestrators, by the Model Context Protocol."""
