"""A scripted agent that speaks the Agent Client Protocol: it does what the prompt says, one action per line.

`say TEXT`, `think TEXT`, `read PATH`, `write PATH TEXT`, `run COMMAND`, `permit KIND`, `plan`, `raw LINE`, `flood N`, `cost X`,
`stop REASON`, `error CODE MESSAGE`, `exit CODE`, `sleep S`, `call METHOD`. Before a session, the variable ACP_STAND_IN may name
`login`, `version`, `silent` or `exit`.
"""

import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

MODE = os.environ.get("ACP_STAND_IN", "")
CALLS = iter(range(1, 1_000_000))


def send(**message: Any) -> None:
    """Send a message."""
    sys.stdout.write(json.dumps({"jsonrpc": "2.0", **message}) + "\n")
    sys.stdout.flush()


def receive() -> Any:
    """Return the next message; with ACP_LOG, write it to that file."""
    line = sys.stdin.readline()
    if not line:
        sys.exit(0)
    if log := os.environ.get("ACP_LOG"):
        with Path(log).open("a") as file:
            file.write(line)
    return json.loads(line)


def update(session_update: str, **fields: Any) -> None:
    """Send an update of the session."""
    send(method="session/update", params={"sessionId": "s-1", "update": {"sessionUpdate": session_update, **fields}})


def ask(method: str, **params: Any) -> Any:
    """Send a request, and return the reply."""
    number = next(CALLS)
    send(id=number, method=method, params={"sessionId": "s-1", **params})
    return receive()


def say(text: Any) -> None:
    """Send a part of a message."""
    update("agent_message_chunk", content={"type": "text", "text": text if isinstance(text, str) else json.dumps(text)})


def act(action: str, text: str) -> Any:  # noqa: C901, PLR0912  # a case for each action
    """Do one action; return a reply to the prompt if it ends the turn."""
    first, _, rest = text.partition(" ")
    call_id = f"call-{next(CALLS)}"
    match action:
        case "say":
            say(text)
        case "think":
            update("agent_thought_chunk", content={"type": "text", "text": text})
        case "read" | "write":
            reply = ask(f"fs/{action}_text_file", path=first, **({"content": rest} if action == "write" else {}))
            say(reply.get("result", reply.get("error")))
        case "run":
            update("tool_call", toolCallId=call_id, title=text, kind="execute", status="pending", rawInput={"command": text})
            output = subprocess.run(["/bin/sh", "-c", text], capture_output=True, text=True, check=False, timeout=120).stdout
            content = [{"type": "content", "content": {"type": "text", "text": output}}]
            update("tool_call_update", toolCallId=call_id, status="completed", content=content)
        case "permit":
            kinds = ("allow_once", "allow_always", "reject_once", "reject_always")
            options = [{"optionId": f"option-{kind}", "name": kind, "kind": kind} for kind in kinds]
            call = {"toolCallId": call_id, "title": f"to {text}", "kind": text}
            say(ask("session/request_permission", toolCall=call, options=options)["result"]["outcome"])
        case "plan":
            update("plan", entries=[{"content": text, "priority": "high", "status": "pending"}])
        case "cost":
            update("usage_update", used=10, size=100, cost={"amount": float(text), "currency": "USD"})
        case "raw":
            sys.stdout.write(f"{text}\n")
        case "flood":
            for _ in range(int(text)):
                update("tool_call", toolCallId=f"call-{next(CALLS)}", title="x", kind="read", status="completed")
        case "line":
            sys.stdout.write("{" + "x" * int(text) + "\n")
        case "call":
            say(ask(text)["error"])
        case "sleep":
            time.sleep(float(text))
        case "exit":
            sys.stderr.write("the agent has crashed\n")
            sys.exit(int(text))
        case "error":
            return {"error": {"code": int(first), "message": rest}}
        case "stop":
            return {"result": {"stopReason": text}}
        case _:
            say(f"{action} {text}".strip())
    return None


def prompt(message: Any) -> dict[str, Any]:
    """Return the reply to a prompt."""
    text = "".join(part["text"] for part in message["params"]["prompt"])
    for line in text.splitlines():
        action, _, rest = line.partition(" ")
        if (reply := act(action, rest)) is not None:
            return dict(reply)
    usage = {"inputTokens": 10, "outputTokens": 5, "totalTokens": 15}
    return {"result": {"stopReason": "end_turn", "usage": usage}}


def main() -> None:
    """Answer requests until the end of standard input."""
    if MODE == "exit":
        sys.exit("npm error: no such package")
    while True:
        message = receive()
        reply: dict[str, Any] = {"error": {"code": -32601, "message": "unknown method"}}
        match message["method"]:
            case "initialize":
                logins = [{"id": "browser", "name": "Log in with a browser", "description": "opens a browser"}]
                version = 7 if MODE == "version" else 1
                reply = {"result": {"protocolVersion": version, "authMethods": logins}}
            case "session/new" if MODE == "login":
                reply = {"error": {"code": -32000, "message": "Authentication required"}}
            case "session/new":
                reply = {"result": {"sessionId": "s-1"}}
            case "session/prompt":
                reply = prompt(message)
            case _:
                pass
        if MODE != "silent":
            send(id=message["id"], **reply)


if __name__ == "__main__":
    main()
