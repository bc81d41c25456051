"""`python -m tilewright.skills.memory`: this skill alone, on stdin and stdout."""

from mcp.server import MCPServer

from tilewright.skills.memory import register

server = MCPServer("memory", log_level="ERROR")
register(server)
server.run("stdio")
