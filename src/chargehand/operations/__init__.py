"""The operations of the product, one record each; REST, OpenAPI, MCP and the client of a server follow them."""
