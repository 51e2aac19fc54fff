"""Starts llama.cpp's server with a model, and asks it to continue a text.

usage: llama_server.py SERVER MODEL. Prints "says TEXT" (as JSON) and "fine".
"""

import json
import subprocess
import sys
import time
import urllib.request

PORT = 18080
ADDRESS = f"http://127.0.0.1:{PORT}"
START_S = 90


def ask(path, body=None):
    data = json.dumps(body).encode() if body else None
    request = urllib.request.Request(f"{ADDRESS}{path}", data, {"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=60) as answer:
        return json.load(answer)


def wait(server):
    end = time.monotonic() + START_S
    while True:
        try:
            return ask("/health")
        except OSError:
            if server.poll() is not None or time.monotonic() > end:
                sys.exit("the server does not answer")
            time.sleep(0.5)


server = subprocess.Popen([sys.argv[1], "--model", sys.argv[2], "--n-gpu-layers", "99", "--host",
                           "127.0.0.1", "--port", str(PORT), "--ctx-size", "2048"])
try:
    wait(server)
    asked = {"prompt": "Once upon a time", "n_predict": 48, "temperature": 0, "seed": 1}
    for _ in range(4):
        said = ask("/completion", asked)["content"]
    print("says", json.dumps(said))
    print("fine", flush=True)
finally:
    server.terminate()
    server.wait()
