"""The MCP server: missions for other agents and external orchestrators, by the Model Context Protocol."""
