"""Runs a task through Flower and waits for its result, or names that of the scheduler's last task:
ask.py ADDRESS put|get."""
import json
import sys
import urllib.request

address, verb = sys.argv[1:]


def ask(path, body=None):
    data = json.dumps(body).encode() if body else None
    return json.load(urllib.request.urlopen(f"http://{address}:5555/api/{path}", data, timeout=20))


if verb == "put":
    print(ask("task/apply/tasks.add", {"args": [40, 2]})["result"])
else:
    done = ask("tasks?taskname=tasks.say&state=SUCCESS&limit=1").values()
    print(*(task["result"].strip("'") for task in done))
