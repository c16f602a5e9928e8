// openai-node: create, stream: true, and the .stream() helpers for both APIs; background answers; and WebSocket
// connections.

import assert from "node:assert/strict";
import OpenAI, { OpenAIError } from "openai";
import { serve } from "./loop.mjs";

function connect({ baseURL, api, mode, model, tools, strict }) {
  const client = new OpenAI({ baseURL, apiKey: "none", maxRetries: 0, timeout: 10_000 });
  if (mode === "websocket") return (prompt, outcome) => websocketLoop(client, { model, tools, strict }, prompt, outcome);
  const turn = { responses: responsesTurn, chat: chatTurn }[api];
  const loop = { responses: responsesLoop, chat: chatLoop }[api];
  return (prompt, outcome) => loop((items) => turn(client, mode, { model, items, tools, strict }), prompt, outcome);
}

async function responsesTurn(client, mode, { model, items, tools, strict }) {
  const request = { model, input: items, tools: tools.map((tool) => ({ type: "function", strict, ...tool })) };
  if (mode === "create") return client.responses.create(request);
  if (mode === "helper") return client.responses.stream(request).finalResponse();
  if (mode === "polled") return polled(client, request);
  if (mode === "resumed") return resumed(client, request);
  const built = {};
  let response;
  for await (const event of await client.responses.create({ ...request, stream: true })) {
    if (event.type === "response.function_call_arguments.delta")
      built[event.item_id] = (built[event.item_id] ?? "") + event.delta;
    else if (event.type === "response.output_item.done" && event.item.type === "function_call")
      assert.equal(built[event.item.id], event.item.arguments);
    else if (event.type === "response.completed") response = event.response;
  }
  assert(response, "no response.completed, and no error");
  return response;
}

async function polled(client, request) {
  let response = await client.responses.create({ ...request, background: true });
  while (["queued", "in_progress"].includes(response.status)) {
    await new Promise((resolve) => setTimeout(resolve, 20));
    response = await client.responses.retrieve(response.id);
  }
  return response;
}

/** Disconnect from a stream after a few events, and resume it from there. */
async function resumed(client, request) {
  let id, last;
  for await (const event of client.responses.stream({ ...request, background: true })) {
    if (event.type === "response.created") id = event.response.id;
    last = event.sequence_number;
    if (last === 5) break;
  }
  const stream = client.responses.stream({ response_id: id, starting_after: last });
  const numbers = [];
  stream.on("event", (event) => numbers.push(event.sequence_number));
  const response = await stream.finalResponse();
  assert.equal(numbers[0], last + 1);
  return response;
}

async function responsesLoop(ask, prompt, outcome) {
  const items = [{ role: "user", content: prompt }];
  for (;;) {
    const { status, output } = await ask(items);
    assert.equal(status, "completed");
    items.push(...output);
    const calls = output.filter((item) => item.type === "function_call");
    for (const { name, arguments: text, call_id } of calls)
      items.push({ type: "function_call_output", call_id, output: outcome.run(name, JSON.parse(text), call_id) });
    if (calls.length) continue;
    outcome.text = output.flatMap((item) => item.content ?? []).map((part) => part.text).join("");
    return;
  }
}

/** Run the tool loop over one connection, which remembers the conversation. */
async function websocketLoop(client, { model, tools, strict }, prompt, outcome) {
  const { ResponsesWS } = await import("openai/resources/responses/ws");
  const connection = new ResponsesWS(client);
  const request = { model, store: false, tools: tools.map((tool) => ({ type: "function", strict, ...tool })) };
  try {
    connection.send({ type: "response.create", ...request, input: prompt });
    for await (const { type, message, error } of connection) {
      if (type === "error") throw error;
      if (type !== "message" || !/^response.(completed|failed)$/.test(message.type)) continue;
      const { id, output, error: failure } = message.response;
      if (failure) throw new OpenAIError(failure.message);
      const calls = output.filter((item) => item.type === "function_call");
      const input = calls.map(({ name, arguments: text, call_id }) => {
        return { type: "function_call_output", call_id, output: outcome.run(name, JSON.parse(text), call_id) };
      });
      if (calls.length) connection.send({ type: "response.create", ...request, input, previous_response_id: id });
      else {
        outcome.text = output.flatMap((item) => item.content ?? []).map((part) => part.text).join("");
        return;
      }
    }
    assert.fail("the connection was closed");
  } finally {
    connection.close();
  }
}

async function chatTurn(client, mode, { model, items, tools, strict }) {
  const functions = tools.map((tool) => ({ type: "function", function: { strict, ...tool } }));
  const request = { model, messages: items, tools: functions };
  if (mode === "create") return (await client.chat.completions.create(request)).choices[0];
  if (mode === "helper") return (await client.chat.completions.stream(request).finalChatCompletion()).choices[0];
  const message = { role: "assistant", content: "" };
  let finish_reason;
  for await (const chunk of await client.chat.completions.create({ ...request, stream: true })) {
    const [choice] = chunk.choices;
    message.content += choice.delta.content ?? "";
    for (const { index, ...piece } of choice.delta.tool_calls ?? []) {
      message.tool_calls ??= [];
      if (piece.id !== undefined) assert.equal(message.tool_calls.push(piece), index + 1);
      else message.tool_calls[index].function.arguments += piece.function.arguments;
    }
    finish_reason = choice.finish_reason ?? finish_reason;
  }
  assert(finish_reason, "no finish reason, and no error");
  return { message, finish_reason };
}

async function chatLoop(ask, prompt, outcome) {
  const messages = [{ role: "user", content: prompt }];
  for (;;) {
    const { message, finish_reason } = await ask(messages);
    const calls = message.tool_calls ?? [];
    assert.equal(finish_reason, calls.length ? "tool_calls" : "stop");
    messages.push(message);
    for (const { id, function: made } of calls) {
      const content = outcome.run(made.name, JSON.parse(made.arguments), id);
      messages.push({ role: "tool", tool_call_id: id, content });
    }
    if (calls.length) continue;
    outcome.text = message.content;
    return;
  }
}

await serve(connect, (error) => error instanceof OpenAIError);
