"""The trusted part: nouns, roles, the loop, the judge, run directories, the MCP host and the command line."""
