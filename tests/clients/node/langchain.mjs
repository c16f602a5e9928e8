// LangChain's ChatOpenAI over both APIs, and its ChatAnthropic: invoke, stream, and calls that are joined from deltas
// as in Obsidian Copilot.

import assert from "node:assert/strict";
import { ChatAnthropic } from "@langchain/anthropic";
import { AIMessage, HumanMessage, ToolMessage } from "@langchain/core/messages";
import { ChatOpenAI } from "@langchain/openai";
import { OpenAIError } from "openai";
import { serve } from "./loop.mjs";

const turns = {
  invoke: (bound, messages) => bound.invoke(messages),

  stream: async (bound, messages) => {
    let sum;
    for await (const chunk of await bound.stream(messages)) sum = sum?.concat(chunk) ?? chunk;
    return sum;
  },

  // For each index, names and arguments are concatenated, and the last id is kept. Arguments that are not JSON become
  // an empty object. From the answer, the next request contains only the text and these calls.
  copilot: async (bound, messages) => {
    let content = "";
    const calls = new Map();
    for await (const chunk of await bound.stream(messages)) {
      content += chunk.text;
      for (const { index = 0, id, name, args } of chunk.tool_call_chunks ?? []) {
        const call = calls.get(index) ?? { id: undefined, name: "", args: "" };
        calls.set(index, { id: id ?? call.id, name: call.name + (name ?? ""), args: call.args + (args ?? "") });
      }
    }
    assert(content || calls.size, "no text and no calls: Copilot would show an error");
    return new AIMessage({ content, tool_calls: [...calls.values()].map((call) => ({ ...call, args: lax(call.args) })) });
  },
};

function lax(text) {
  try {
    return JSON.parse(text);
  } catch {
    return {};
  }
}

function openAI({ baseURL, api, model, tools, strict }) {
  const chat = new ChatOpenAI({
    model,
    apiKey: "none",
    configuration: { baseURL },
    maxRetries: 0,
    timeout: 10_000,
    useResponsesApi: api === "responses",
  });
  const declared = tools.map((tool) => ({ type: "function", function: tool }));
  return chat.bindTools(declared, { strict });
}

function anthropic({ baseURL, model, tools, strict }) {
  const anthropicApiUrl = baseURL.replace(/\/v1$/, "");
  const chat = new ChatAnthropic({ model, apiKey: "none", anthropicApiUrl, maxRetries: 0, maxTokens: 512 });
  return chat.bindTools(tools.map(({ parameters, ...tool }) => ({ ...tool, strict, input_schema: parameters })));
}

function connect({ mode, ...job }) {
  const bound = job.api === "messages" ? anthropic(job) : openAI(job);
  return async (prompt, outcome) => {
    const messages = [new HumanMessage(prompt)];
    for (;;) {
      const message = await turns[mode](bound, messages);
      assert.deepEqual(message.invalid_tool_calls ?? [], []);
      messages.push(message);
      for (const { name, args, id } of message.tool_calls ?? [])
        messages.push(new ToolMessage({ tool_call_id: id, content: outcome.run(name, args, id) }));
      if (message.tool_calls?.length) continue;
      outcome.text = message.text;
      return;
    }
  };
}

// ChatAnthropic throws errors of its own copy of the SDK, whose error class cannot be imported here.
await serve(connect, (error) => error instanceof OpenAIError || error.name.length > 0);
