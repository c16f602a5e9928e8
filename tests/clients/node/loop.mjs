// What the clients share: a worker that takes one job a line and answers one line, and the two tools.

import { createInterface } from "node:readline";

/** Run a tool as the client would; cases.py has the same two. */
export function runTool(name, args) {
  return name === "get_weather" ? `The sky over ${args.city} is clear.` : "Paris, Rome";
}

export class Outcome {
  calls = [];
  ids = [];
  text = "";
  error = null;

  /** Run one call and note it; args are parsed already. */
  run(name, args, id) {
    this.calls.push([name, args]);
    this.ids.push(id);
    return runTool(name, args);
  }
}

/**
 * Answer jobs ({baseURL, api, mode, model, tools, strict, prompts}) until stdin ends. `connect(job)` returns the loop of
 * one client: an async function (prompt, outcome) that throws the library's own errors, which `isOwn` tells from all
 * others; any other is answered as {bug}.
 */
export async function serve(connect, isOwn) {
  for await (const line of createInterface({ input: process.stdin })) {
    const job = JSON.parse(line);
    const loop = connect(job);
    const outcomes = [];
    let bug;
    for (const prompt of job.prompts) {
      const outcome = new Outcome();
      outcomes.push(outcome);
      try {
        await loop(prompt, outcome);
      } catch (error) {
        outcome.error = `${error.name}: ${error.message}`;
        if (!isOwn(error)) bug ??= error.stack;
      }
    }
    process.stdout.write(JSON.stringify({ bug, outcomes }) + "\n");
  }
}
