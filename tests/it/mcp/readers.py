async def other(agent):
    assert (await agent.call("read", path="a"))["form"] == "content"
    assert (await agent.call("read", path="a"))["form"] == "unchanged"


async def another(agent):
    assert (await agent.call("read", path="a"))["form"] == "unchanged"


async def talk(agent):
    """Connections at once, each of which is a reader of its own, but for those that say they are one."""
    assert (await agent.call("read", path="a"))["form"] == "content"
    await connected(other)
    await connected(other, "--session", "one reader")
    await connected(another, "--session", "one reader")
    async with anyio.create_task_group() as group:
        for _ in range(4):
            group.start_soon(connected, other)
        # And many calls of one.
        for _ in range(20):
            group.start_soon(agent.caller, "read", {"path": "a"})
    assert (await agent.call("read", path="a"))["form"] == "unchanged"


main()
