// Shared code of the clients: the two tools, and a worker that reads one job per line and answers each with one line.

import { createInterface } from "node:readline";

/** Return the result of a tool that the client runs. cases.py defines the same two tools. */
export function runTool(name, args) {
  return name === "get_weather" ? `The sky over ${args.city} is clear.` : "Paris, Rome";
}

export class Outcome {
  calls = [];
  ids = [];
  text = "";
  error = null;

  /** Run a call and record it. The arguments are already parsed. */
  run(name, args, id) {
    this.calls.push([name, args]);
    this.ids.push(id);
    return runTool(name, args);
  }
}

/**
 * Answer jobs ({baseURL, api, mode, model, tools, strict, prompts}) until stdin ends. `connect(job)` returns the tool
 * loop of a client: an async function (prompt, outcome). It may throw errors of the client library, which `isOwn`
 * recognizes. Any other error is reported as {bug}.
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
