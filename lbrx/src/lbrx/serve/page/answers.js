// Asks the server, and reads the events of its answers.
const key = () => sessionStorage.getItem("lbrx.key");

export async function ask(path, body, signal) {
  const headers = { "Content-Type": "application/json" };
  if (key()) headers.Authorization = `Bearer ${key()}`;
  const answer = await fetch(path, {
    method: body ? "POST" : "GET", headers, body: body && JSON.stringify(body), signal, credentials: "omit",
  });
  if (answer.ok) return answer;
  let message = `The server answers with status ${answer.status}.`;
  try { message = (await answer.json()).error.message; } catch { /* it has no text */ }
  if (answer.status === 401) message += " Write the key into the settings.";
  throw new Error(message);
}

// The objects of a stream of server-sent events.
export async function* events(answer) {
  const reader = answer.body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  for (;;) {
    const { value, done } = await reader.read();
    if (done) return;
    rest += value;
    const lines = rest.split("\n");
    rest = lines.pop();
    for (const line of lines) {
      if (!line.startsWith("data: ")) continue;
      if (line === "data: [DONE]") return;
      const data = JSON.parse(line.slice(6));
      if (data.error) throw new Error(data.error.message);
      yield data;
    }
  }
}
