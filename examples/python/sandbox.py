"""Runs code in a sandbox: commands, files, output as it comes."""

import os

from tenure import Client

client = Client(os.environ.get("TENURE_SERVER", "http://127.0.0.1:7423"), api_key=os.environ.get("TENURE_API_KEY"))
image = os.environ.get("EXAMPLE_IMAGE", "host")

with client.sandbox(image, memory_mb=256, ttl="10m") as sb:
    print(sb.run("echo $((6 * 7))").stdout.strip())

    sb.write_file("/workspace/numbers.txt", "3\n1\n2\n")
    result = sb.run(["sort", "numbers.txt"], timeout=30, check=True)
    print(result.stdout.split())

    with sb.stream("for n in 1 2 3; do echo line $n; done; exit 3") as output:
        for chunk in output:
            print(chunk.text, end="")
    print("exit code", output.exit_code)
