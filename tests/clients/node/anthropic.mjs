// Anthropic's SDK: create, stream: true, the .stream() helper, the tool runner, token counts, and errors.

import assert from "node:assert/strict";
import Anthropic, { AnthropicError, RateLimitError } from "@anthropic-ai/sdk";
import { serve } from "./loop.mjs";

function connect({ baseURL, mode, model, tools, strict }) {
  const client = new Anthropic({ baseURL: baseURL.replace(/\/v1$/, ""), apiKey: "none", maxRetries: 0, timeout: 10_000 });
  const declared = tools.map(({ name, description, parameters }) => ({
    name,
    description,
    input_schema: parameters,
    strict,
  }));
  const request = { model, max_tokens: 512, tools: declared };
  if (mode === "runner") return (prompt, outcome) => runner(client, request, prompt, outcome);
  if (mode === "count") return (prompt, outcome) => count(client, request, prompt, outcome);
  return (prompt, outcome) => loop((messages) => turn(client, mode, { ...request, messages }), prompt, outcome);
}

async function turn(client, mode, request) {
  if (mode === "create") return client.messages.create(request);
  if (mode === "helper") return client.messages.stream(request).finalMessage();
  const content = [];
  const inputs = {};
  let stop_reason;
  for await (const event of await client.messages.create({ ...request, stream: true })) {
    const { type, index, delta } = event;
    if (type === "content_block_start") assert.equal(content.push(event.content_block), index + 1);
    else if (delta?.type === "input_json_delta") inputs[index] = (inputs[index] ?? "") + delta.partial_json;
    else if (delta?.type === "text_delta") content[index].text += delta.text;
    else if (type === "content_block_stop" && index in inputs) content[index].input = JSON.parse(inputs[index]);
    else if (type === "message_delta") stop_reason = delta.stop_reason;
  }
  assert(stop_reason, "no stop reason, and no error");
  return { content, stop_reason };
}

async function loop(ask, prompt, outcome) {
  const messages = [{ role: "user", content: prompt }];
  for (;;) {
    const { content, stop_reason } = await ask(messages);
    const uses = content.filter((block) => block.type === "tool_use");
    assert.equal(stop_reason, uses.length ? "tool_use" : "end_turn");
    messages.push({ role: "assistant", content });
    const results = uses.map(({ id, name, input }) => ({
      type: "tool_result",
      tool_use_id: id,
      content: outcome.run(name, input, id),
    }));
    if (results.length) {
      messages.push({ role: "user", content: results });
      continue;
    }
    outcome.text = words(content);
    return;
  }
}

async function runner(client, { tools, ...request }, prompt, outcome) {
  const runnable = tools.map((tool) => ({
    ...tool,
    run: (input, context) => outcome.run(tool.name, input, context.toolUse.id),
    parse: (input) => input,
  }));
  const messages = [{ role: "user", content: prompt }];
  outcome.text = words((await client.beta.messages.toolRunner({ ...request, tools: runnable, messages })).content);
}

/** Check two token counts; then expect the backend to refuse a request, and report the SDK's error as the text. */
async function count(client, request, prompt, outcome) {
  const messages = [{ role: "user", content: prompt }];
  const { model, tools } = request;
  const { input_tokens: bare } = await client.messages.countTokens({ model, messages });
  const { input_tokens: whole } = await client.messages.countTokens({ model, messages, tools });
  assert(0 < bare && bare < whole, `${bare} tokens, ${whole} with tools`);
  try {
    await client.messages.create({ ...request, messages });
  } catch (error) {
    assert(error instanceof RateLimitError, error.stack);
    outcome.text = `${error.type}: ${error.error.error.message}`;
  }
}

function words(content) {
  return content.map((block) => block.text ?? "").join("");
}

await serve(connect, (error) => error instanceof AnthropicError);
