"""`python -m tilewright.skills.triage`: this skill alone, on stdin and stdout."""

from mcp.server import MCPServer

from tilewright.skills.triage import register

server = MCPServer("triage", log_level="ERROR")
register(server)
server.run("stdio")
