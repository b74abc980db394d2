// A command-line agent in JavaScript: it calls a model with a tool, and prints its last message.
//
// export OPENAI_API_KEY=…
// evaljournal run --data examples/capitals.jsonl --command 'node examples/agent.mjs' --gateway --score contains
//
// The agent needs no change for evaljournal. With --gateway, OPENAI_BASE_URL is the gateway of the run, which records each call.

import { readFileSync } from "node:fs";

const base = process.env.OPENAI_BASE_URL ?? "https://api.openai.com/v1";
const tools = [
  { type: "function", function: { name: "population", parameters: { type: "object", properties: { city: { type: "string" } } } } },
];

async function complete(messages) {
  const reply = await fetch(`${base}/chat/completions`, {
    method: "POST",
    headers: { "Content-Type": "application/json", Authorization: `Bearer ${process.env.OPENAI_API_KEY}` },
    body: JSON.stringify({ model: "gpt-5.6-luna", messages, tools }),
  });
  if (!reply.ok) throw new Error(`${reply.status} ${await reply.text()}`);
  return (await reply.json()).choices[0].message;
}

const messages = [{ role: "user", content: JSON.parse(readFileSync(0)) }];
let message = await complete(messages);
for (let turn = 0; message.tool_calls && turn < 10; turn++) {
  messages.push(message);
  for (const call of message.tool_calls) {
    messages.push({ role: "tool", tool_call_id: call.id, content: JSON.stringify({ population: 1000000 }) });
  }
  message = await complete(messages);
}
console.log(message.content);
