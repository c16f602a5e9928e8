// Measures @ai-sdk-tool/parser: prints the CPU time per delta in microseconds, and the number of calls that it parsed.
// The input is one line of JSON: {"deltas": […], "runs": n}. Packages are loaded from the current folder.

import { createRequire } from "node:module";
import { pathToFileURL } from "node:url";

const find = createRequire(`${process.cwd()}/`);
const { hermesProtocol } = await import(pathToFileURL(find.resolve("@ai-sdk-tool/parser")));

let text = "";
for await (const piece of process.stdin) text += piece;
const { deltas, runs } = JSON.parse(text);
const parameters = { type: "object", properties: { path: { type: "string" }, text: { type: "string" } } };
const tools = [{ type: "function", name: "write", inputSchema: parameters }];

async function run() {
  const parser = hermesProtocol().createStreamParser({ tools, options: {} });
  const parts = [];
  const reading = (async () => {
    for await (const part of parser.readable) parts.push(part);
  })();
  const writer = parser.writable.getWriter();
  const before = process.cpuUsage();
  for (const delta of deltas) await writer.write({ type: "text-delta", id: "1", delta });
  await writer.write({ type: "finish", finishReason: "stop", usage: {} });
  await writer.close();
  await reading;
  const { user, system } = process.cpuUsage(before);
  return { micros: (user + system) / deltas.length, calls: parts.filter((part) => part.type === "tool-call").length };
}

await run();
const figures = [];
for (let at = 0; at < runs; at++) figures.push(await run());
figures.sort((one, other) => one.micros - other.micros);
console.log(JSON.stringify(figures[figures.length >> 1]));
