// The page's script: a chat over /v1, and a look at /status every second. Nothing is stored.

const $ = (id) => document.getElementById(id);
const PHONE = matchMedia("(max-width: 45rem)");
const STATUS_MS = 1000;

let messages = [];
let running = null; // the AbortController of the answer that comes
let chats = true; // whether the model has a chat template
let limit = 0; // tokens a second that the memory allows one stream

function headers() {
  const key = $("key").value.trim();
  return key ? { Authorization: `Bearer ${key}` } : {};
}

function fail(text) {
  $("error").textContent = text;
  $("error").hidden = !text;
}

async function reason(response) {
  try {
    return (await response.json()).error.message;
  } catch {
    return `the server says ${response.status}.`;
  }
}

// status

async function look() {
  if (document.visibilityState !== "visible") return;
  try {
    const response = await fetch("status", { headers: headers() });
    if (response.ok) show(await response.json());
    else if (response.status === 401) fail("This server wants an API key; it goes into the settings.");
  } catch {
    $("running").textContent = $("waiting").textContent = "–";
  }
}

function show(status) {
  const load = status.load;
  chats = status.takes_chat;
  limit = status.memory_tokens_per_second;
  $("model").textContent = status.model;
  document.title = `${status.model} · hotloop`;
  $("limit").textContent = limit ? `The memory allows ${limit.toFixed(0)} to one stream.` : "";
  $("running").textContent = load.running;
  $("waiting").textContent = load.waiting;
  const used = load.pages - load.pages_free;
  $("pages-meter").value = used / load.pages;
  $("pages").textContent = `${used} of ${load.pages} pages in use, ${load.pages_cached} remembered`;
  const share = load.prompt_tokens ? load.cached_tokens / load.prompt_tokens : 0;
  $("hits").textContent = `${(100 * share).toFixed(0)}% of all prompt tokens were found in the cache.`;
  $("facts").replaceChildren(...Object.entries(status.facts).flatMap(([name, value]) => {
    const [term, text] = [document.createElement("dt"), document.createElement("dd")];
    term.textContent = name;
    text.textContent = value;
    return [term, text];
  }));
}

function showSpeed(rate) {
  $("speed").textContent = rate.toFixed(1);
  $("speed-meter").value = limit ? Math.min(1, rate / limit) : 0;
}

// chat

function add(role, text) {
  $("hint")?.remove();
  const bubble = document.createElement("div");
  bubble.className = `message ${role}`;
  bubble.textContent = text;
  $("log").append(bubble);
  bubble.scrollIntoView({ block: "end" });
  return bubble;
}

function note(text) {
  const line = document.createElement("p");
  line.className = "note quiet";
  line.textContent = text;
  $("log").append(line);
  line.scrollIntoView({ block: "end" });
}

function request() {
  const common = {
    stream: true,
    stream_options: { include_usage: true },
    temperature: Number($("temperature").value),
    max_tokens: Number($("max").value),
  };
  const system = $("system").value.trim();
  if (!chats) return ["v1/completions", { ...common, prompt: messages.at(-1).content }];
  const head = system ? [{ role: "system", content: system }] : [];
  return ["v1/chat/completions", { ...common, messages: [...head, ...messages] }];
}

async function* events(body) {
  const reader = body.pipeThrough(new TextDecoderStream()).getReader();
  let held = "";
  for (;;) {
    const { value, done } = await reader.read();
    if (done) return;
    const parts = (held + value).split("\n\n");
    held = parts.pop();
    for (const part of parts) {
      if (part === "data: [DONE]") return;
      if (part.startsWith("data: ")) yield JSON.parse(part.slice(6));
    }
  }
}

async function send() {
  const text = $("text").value.trim();
  if (!text || running) return;
  fail("");
  $("text").value = "";
  const chat = messages; // a new one may begin before the answer has ended
  chat.push({ role: "user", content: text });
  add("user", text);
  const bubble = add("assistant waiting", "");
  setRunning(new AbortController());
  let answer = "";
  try {
    answer = await stream(bubble);
    chat.push({ role: "assistant", content: answer });
  } catch (error) {
    if (error.name === "AbortError") {
      chat.push({ role: "assistant", content: bubble.textContent });
      if (chat === messages) note("stopped");
    } else {
      chat.pop();
      fail(error.message);
    }
  } finally {
    bubble.classList.remove("waiting");
    if (!bubble.textContent) bubble.remove();
    setRunning(null);
    look();
  }
}

async function stream(bubble) {
  const [path, body] = request();
  const started = performance.now();
  const response = await fetch(path, {
    method: "POST",
    headers: { "Content-Type": "application/json", ...headers() },
    body: JSON.stringify(body),
    signal: running.signal,
  });
  if (!response.ok) throw new Error(await reason(response));
  let [answer, first, count, reasonOfEnd] = ["", 0, 0, ""];
  for await (const event of events(response.body)) {
    if (event.error) throw new Error(event.error.message);
    const choice = event.choices[0];
    const piece = choice?.delta?.content ?? choice?.text ?? "";
    if (piece) {
      first ||= performance.now();
      count += 1;
      answer += piece;
      bubble.append(piece);
      const atEnd = $("log").scrollHeight - $("log").scrollTop - $("log").clientHeight < 120;
      if (atEnd) bubble.scrollIntoView({ block: "end" });
    }
    if (first && count > 1) showSpeed(rate(count, first));
    reasonOfEnd = choice?.finish_reason ?? reasonOfEnd;
    if (event.usage) {
      const made = event.usage.completion_tokens;
      if (first && made > 1) showSpeed(rate(made, first));
      const cached = event.usage.prompt_tokens_details.cached_tokens;
      const wait = ((first || performance.now()) - started) / 1000;
      const why = reasonOfEnd === "length" ? ", cut at its longest" : "";
      note(`${made} tokens, the first after ${wait.toFixed(2)} s; ${cached} of ${event.usage.prompt_tokens} prompt tokens cached${why}`);
    }
  }
  return answer;
}

function rate(count, first) {
  return (count - 1) / Math.max(1e-3, (performance.now() - first) / 1000);
}

function setRunning(controller) {
  running = controller;
  $("stop").hidden = !controller;
  $("send").hidden = Boolean(controller);
  if (!controller) $("text").focus();
}

function stop() {
  running?.abort();
}

$("form").addEventListener("submit", (event) => {
  event.preventDefault();
  send();
});
$("text").addEventListener("keydown", (event) => {
  if (event.key === "Enter" && !event.shiftKey && !event.isComposing) {
    event.preventDefault();
    send();
  }
});
document.addEventListener("keydown", (event) => {
  if (event.key === "Escape") stop();
});
$("stop").addEventListener("click", stop);
$("new").addEventListener("click", () => {
  stop();
  messages = [];
  $("log").replaceChildren();
  fail("");
  $("text").focus();
});
$("key").addEventListener("change", () => {
  fail("");
  look();
});

$("panel").open = !PHONE.matches;
PHONE.addEventListener("change", () => ($("panel").open = !PHONE.matches));
look();
setInterval(look, STATUS_MS);
