"""Runs when rows were added to `alert_events`, and remembers how far it has told people of them."""

import json
import sys

task = json.load(sys.stdin)
rows = task["inputs"][0]["cursor"]
new = rows["upto"] - rows["after"]
told = task["operator_state"].get("told", 0) + new
print(f"{new} new rows in alert_events, up to number {rows['upto']}", file=sys.stderr)
json.dump({"status": "Completed", "operator_state": {"told": told, "upto": rows["upto"]}}, sys.stdout)
