async def talk(agent):
    pathlib.Path("a").write_text(lines(100, changed=90))
    [held] = (await agent.call("status"))["held"]
    for tool in ["confirm", "discard"]:
        message = await agent.refused("not_permitted", tool, targets=[held["id"]])
        assert "ask the person you work for" in message, message
    await agent.refused("not_permitted", "check", command=["true"], confirm=True)
    green = await agent.call("check", command=["grep", "-q", "changed", "a"])
    assert green["passed"] and green["outcomes"] is None, green
    asked = await agent.call("request_review", targets=["a"], message="because")
    assert not asked["may_confirm"], asked
    assert [held["id"]] == [held["id"] for held in (await agent.call("status"))["held"]]


main()
