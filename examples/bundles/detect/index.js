// Looks at one part of a range, and publishes what is suspicious to the table `alert_events`.
const fs = require("fs");

const task = JSON.parse(fs.readFileSync(0, "utf8"));
const { start, end } = task.inputs[0].partition;
const threshold = Number(process.env.THRESHOLD);

// Stands for reading the transfers of a block: always the same for the same block.
const amount = (block) => (block * 7919) % 1000;

const records = [];
for (let block = start; block <= end; block++) {
  if (amount(block) >= threshold) {
    records.push({ dedupe_key: `block-${block}`, severity: "critical", block_number: block, amount: amount(block) });
  }
}

async function call(name, body) {
  const fence = { task_id: task.task_id, attempt: task.attempt, lease_token: task.lease_token };
  const answer = await fetch(`${process.env.TRACE_DISPATCHER_URL}/v1/task/${name}`, {
    method: "POST",
    headers: { "content-type": "application/json", "x-trace-task-capability": process.env.TRACE_TASK_CAPABILITY_TOKEN },
    body: JSON.stringify({ ...fence, ...body }),
  });
  if (!answer.ok) throw new Error(`${name}: ${answer.status} ${await answer.text()}`);
  return answer.json();
}

(async () => {
  if (records.length > 0) await call("buffer-publish", { dataset_uuid: task.outputs[0].dataset_uuid, records });
  console.error(`${records.length} of ${end - start + 1} blocks are suspicious`);
  console.log(JSON.stringify({ status: "Completed" }));
})();
