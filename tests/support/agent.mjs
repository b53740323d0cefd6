// An agent by the official TypeScript SDK. Argument: {"url", "headers", "rounds": [[{"name", "arguments", "meta"}, …], …]}.
// The calls of a round are made at once; each round has a session of its own. Writes one JSON line: an outcome per call.
import { Client } from "@modelcontextprotocol/sdk/client/index.js";
import { StreamableHTTPClientTransport } from "@modelcontextprotocol/sdk/client/streamableHttp.js";

const { url, headers, rounds } = JSON.parse(process.argv[2]);

async function outcome(client, call) {
  const progress = [];
  const params = { name: call.name, arguments: call.arguments, _meta: call.meta };
  const options = call.progress ? { onprogress: (event) => progress.push(event.progress) } : {};
  try {
    return { result: await client.callTool(params, undefined, options), progress };
  } catch (error) {
    return { error: { name: error.name, code: error.code, message: error.message, data: error.data }, progress };
  }
}

const outcomes = [];
for (const calls of rounds) {
  const client = new Client({ name: "agent", version: "1.0.0" });
  const transport = new StreamableHTTPClientTransport(new URL(url), { requestInit: { headers } });
  await client.connect(transport);
  outcomes.push(await Promise.all(calls.map((call) => outcome(client, call))));
  await transport.terminateSession();
  await client.close();
}
process.stdout.write(JSON.stringify(outcomes));
