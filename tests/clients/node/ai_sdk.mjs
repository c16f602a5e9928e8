// The AI SDK with its providers for OpenAI's two APIs and Anthropic's API: generateText and streamText, which run the
// tool loop themselves.

import { createAnthropic } from "@ai-sdk/anthropic";
import { createOpenAI } from "@ai-sdk/openai";
import { AISDKError, generateText, jsonSchema, stepCountIs, streamText, tool } from "ai";
import { serve } from "./loop.mjs";

globalThis.AI_SDK_LOG_WARNINGS = false;

// The provider for Anthropic's API omits strict if it does not know the model's name.
const CLAUDE = "claude-sonnet-4-6";

function connect({ baseURL, api, mode, model, tools, strict }) {
  const provider = api === "messages" ? createAnthropic : createOpenAI;
  const models = provider({ baseURL, apiKey: "none" });
  return async (prompt, outcome) => {
    const request = {
      model: models[api](api === "messages" ? CLAUDE : model),
      prompt,
      maxRetries: 0,
      stopWhen: stepCountIs(6),
      tools: Object.fromEntries(
        tools.map(({ name, description, parameters }) => [
          name,
          tool({
            description,
            strict,
            inputSchema: jsonSchema(parameters),
            execute: (input, { toolCallId }) => outcome.run(name, input, toolCallId),
          }),
        ]),
      ),
    };
    if (mode === "generateText") {
      outcome.text = (await generateText(request)).text;
      return;
    }
    const result = streamText({ ...request, onError: () => {} });
    for await (const part of result.fullStream) if (part.type === "error") throw part.error;
    outcome.text = await result.text;
  };
}

await serve(connect, AISDKError.isInstance);
