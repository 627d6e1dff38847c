"""An agent with a real client of MCP. A test puts its `async def talk(agent)` behind this and ends with `main()`.

Environment: PROGRAM (fettlefs), MODE (`auto` or `legacy`, of clients that know both).
"""

import json
import os
import pathlib
import subprocess
import sys

import anyio
import mcp
from mcp import StdioServerParameters
from mcp.client.stdio import stdio_client

TOOLS = ["status", "diff", "read", "patch", "check", "request_review", "discard", "confirm"]


class Agent:
    """One connection, by whichever client there is."""

    def __init__(self, caller, lister, version):
        self.caller, self.lister, self.version = caller, lister, version
        self.text = None

    async def call(self, tool, /, **arguments):
        """The structured answer of a call that succeeds. The client has checked it against the tool's schema."""
        refused, answer = await self.ask(tool, arguments)
        assert not refused and answer["ok"] is True and answer["op"] == tool, (tool, arguments, answer)
        return answer

    async def refused(self, code, tool, /, **arguments):
        """The message of a call that is refused, by its code."""
        refused, answer = await self.ask(tool, arguments)
        assert refused and answer["ok"] is False, (tool, arguments, answer)
        assert answer["error"]["code"] == code, (tool, arguments, answer)
        assert self.text.startswith(f"{code}: "), self.text
        return answer["error"]["message"]

    async def ask(self, tool, arguments):
        told = (await self.caller(tool, arguments)).model_dump(by_alias=True, mode="json")
        [block] = told["content"]
        self.text = block["text"]
        return told["isError"], told["structuredContent"]

    async def tools(self):
        return [tool.model_dump(by_alias=True, mode="json") for tool in (await self.lister()).tools]


def parameters(*flags):
    environment = dict(os.environ)
    return StdioServerParameters(command=os.environ["PROGRAM"], args=["mcp", *flags], cwd=os.getcwd(), env=environment)


async def connected(talk, *flags):
    if hasattr(mcp, "Client"):
        async with mcp.Client(parameters(*flags), mode=os.environ["MODE"]) as client:
            await talk(Agent(client.call_tool, client.list_tools, client.protocol_version))
        return
    async with stdio_client(parameters(*flags)) as (reading, writing):
        async with mcp.ClientSession(reading, writing) as session:
            version = (await session.initialize()).protocolVersion
            await talk(Agent(session.call_tool, session.list_tools, version))


def fettlefs(*words):
    told = subprocess.run([os.environ["PROGRAM"], *words, "--json"], capture_output=True, text=True, check=True)
    return [json.loads(line) for line in told.stdout.splitlines()]


def lines(count, changed=0):
    return "".join(f"{'changed ' if n < changed else ''}line {n}\n" for n in range(count))


def main(*flags):
    anyio.run(connected, talk, *flags)
