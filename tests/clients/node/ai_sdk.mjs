// AI SDK: generateText and streamText, with openai.responses() and openai.chat(), which run the steps themselves.

import { createOpenAI } from "@ai-sdk/openai";
import { AISDKError, generateText, jsonSchema, stepCountIs, streamText, tool } from "ai";
import { serve } from "./loop.mjs";

globalThis.AI_SDK_LOG_WARNINGS = false;

function connect({ baseURL, api, mode, model, tools, strict }) {
  const openai = createOpenAI({ baseURL, apiKey: "none" });
  return async (prompt, outcome) => {
    const request = {
      model: openai[api](model),
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
