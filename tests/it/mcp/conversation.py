async def talk(agent):
    assert agent.version == os.environ["VERSION"], agent.version
    tools = {tool["name"]: tool for tool in await agent.tools()}
    assert list(tools) == TOOLS, tools
    assert all(tool["inputSchema"]["type"] == tool["outputSchema"]["type"] == "object" for tool in tools.values())
    read_only = [name for name, tool in tools.items() if tool["annotations"]["readOnlyHint"]]
    assert read_only == ["status", "diff", "read"], read_only
    assert tools["confirm"]["annotations"]["destructiveHint"] is True

    status = await agent.call("status")
    assert status == fettlefs("status")[0] and status["held"] == [] and status["mounted"], status

    # What an agent writes without any tool is held, and the tools tell it.
    pathlib.Path("src/a").write_text(lines(100, changed=90))
    [held] = (await agent.call("status"))["held"]
    assert (held["path"], held["reason"], held["insertions"]) == ("src/a", "size", 90), held
    diff = await agent.call("diff", targets=[held["id"]])
    assert diff == fettlefs("diff")[0] and "+changed line 0\n" in agent.text, diff
    # The change itself counts as one, what it would do byte by byte.
    page = await agent.call("diff", limit=100)
    assert len(page["changes"][0]["diff"]) == 99 and page["next"] == 100, page
    rest = await agent.call("diff", offset=100)
    assert page["changes"][0]["diff"] + rest["changes"][0]["diff"] == diff["changes"][0]["diff"]

    # A file is sent once, then what has changed of it.
    first = await agent.call("read", path="src/a")
    assert (first["form"], first["text"], agent.text) == ("content", lines(100, changed=90), first["text"])
    assert (await agent.call("read", path=os.path.abspath("src/a")))["form"] == "unchanged"
    with open("src/a", "a") as file:
        file.write("one more\n")
    told = await agent.call("read", path="src/a")
    assert told["form"] == "diff" and "+one more\n" in agent.text, told
    part = await agent.call("read", path="src/a", offset=2, limit=1)
    assert part["text"] == "changed line 2\n" and "offset 3" in agent.text, part
    assert (await agent.call("read", path="src/a", reset=True))["form"] == "content"
    assert (await agent.call("read", reset=True))["form"] == "forgotten"

    # A patch lands or is held as any write; one that does not fit changes nothing.
    base = (await agent.call("read", path="b"))["sha256"]
    hunk = {"left": "line 4\n", "old": "line 5\n", "right": "line 6\n", "new": "a line of a patch\n"}
    file = {"path": "b", "base_sha256": base, "hunks": [hunk]}
    planned = await agent.call("patch", files=[file], dry_run=True)
    assert planned["dry_run"] and pathlib.Path("b").read_text() == lines(100), planned
    [outcome] = (await agent.call("patch", files=[file]))["outcomes"]
    patched = lines(100).replace("line 5\n", "a line of a patch\n", 1)
    assert outcome["action"] == "landed" and pathlib.Path("b").read_text() == patched, outcome
    assert (await agent.call("read", path="b"))["form"] == "certificate"
    await agent.refused("conflict", "patch", files=[file])
    twice = {**file, "base_sha256": outcome["sha256"], "hunks": [{"old": "line", "new": "LINE"}]}
    assert "100 places" in await agent.refused("ambiguous", "patch", files=[twice])
    outside = {**file, "path": "../b"}
    await agent.refused("bad_request", "patch", files=[outside])
    many = {**twice, "hunks": [hunk] * 501}
    assert "write the files" in await agent.refused("too_large", "patch", files=[many])
    assert pathlib.Path("b").read_text() == patched

    # What is not there, what is not ours, and what makes no sense.
    await agent.refused("unknown_path", "read", path="/etc/passwd")
    await agent.refused("unknown_path", "read", path="../../etc/passwd")
    await agent.refused("unknown_path", "read", path="no-such-file")
    await agent.refused("bad_request", "read", path="src")
    await agent.refused("bad_request", "read")
    await agent.refused("bad_request", "read", path="b", line=3)
    await agent.refused("bad_request", "read", path=["b"])
    await agent.refused("bad_request", "discard", targets=[])
    await agent.refused("bad_request", "discard", targets=["src/a"], hunks=[0])
    await agent.refused("bad_request", "discard", targets=["src/a"], hunks=[])
    await agent.refused("bad_request", "diff", limit=0)
    await agent.refused("bad_request", "check", command=[])
    await agent.refused("bad_request", "check", command="true")
    await agent.refused("unknown_id", "discard", targets=["00000000"])
    await agent.refused("unknown_path", "confirm", targets=["/etc/passwd"])
    try:
        await agent.caller("unmount", {})
    except Exception as err:
        assert "unknown tool" in str(err), err
    else:
        raise AssertionError("a tool that there is not")

    # A command on this version: red tells its last lines, green has land what it tested.
    red = await agent.call("check", command=["sh", "-c", "echo working; echo the fault >&2; exit 3"], confirm=True)
    assert (red["passed"], red["status"], red["tail"]) == (False, 3, "working\nthe fault\n"), red
    assert red["held_count"] == 1 and (await agent.call("check", command=["no-such-program"]))["status"] == 127
    green = await agent.call("check", command=["grep", "-q", "one more", "src/a"])
    assert (green["passed"], green["outcomes"], green["moved"]) == (True, None, []), green

    asked = await agent.call("request_review", message="so that a is right")
    assert asked["held_count"] == 1 and asked["held"][0]["path"] == "src/a" and asked["may_confirm"], asked
    [event] = [event for event in fettlefs("events") if event["event"] == "review_requested"]
    assert (event["path"], event["message"]) == ("src/a", "1 held change: so that a is right"), event

    # Under `approve = "anyone"` an agent may decide.
    [held] = (await agent.call("status"))["held"]
    assert (await agent.call("confirm", targets=[held["id"]], dry_run=True))["outcomes"][0]["action"] == "applied"
    await agent.call("discard", targets=["src/*"], dry_run=True)
    assert len((await agent.call("status"))["held"]) == 1
    [outcome] = (await agent.call("confirm", targets=[held["id"]]))["outcomes"]
    assert (outcome["action"], outcome["path"]) == ("applied", "src/a"), outcome
    await agent.refused("already_applied", "confirm", targets=[held["id"]])
    pathlib.Path("src/a").write_text(lines(100))
    await agent.call("discard", targets=["src/a"])
    assert pathlib.Path("src/a").read_text() == lines(100, changed=90) + "one more\n"
    pathlib.Path("src/a").write_text(lines(100))
    green = await agent.call("check", command=["true"], confirm=True)
    assert [outcome["path"] for outcome in green["outcomes"]] == ["src/a"], green
    assert (await agent.call("status"))["held"] == []


main()
