"""Skills: advice over MCP. Each folder is a skill in the Agent Skills format and a package with `register`."""
