"""Reads the body of the webhook, and says which range of blocks is new."""

import json
import sys

task = json.load(sys.stdin)
blocks = task["work_payload"]
output = task["outputs"][0]
json.dump(
    {
        "status": "Completed",
        "outputs": [
            {
                "output_index": 0,
                "dataset_uuid": output["dataset_uuid"],
                "dataset_version": output["dataset_version"],
                "location": "none:",
                "partition_key": f"{blocks['first']}-{blocks['last']}",
            }
        ],
    },
    sys.stdout,
)
