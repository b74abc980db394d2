// What an agent did in an attempt: its messages, its tool calls with their results, and its other steps, each in one line that opens.
"use strict";

const FIRST_TURNS = 100, LAST_TURNS = 200; // Of a longer transcript, those between are shown on demand.
const PREVIEW_CHARS = 240;

// The same value, whether it is recorded as JSON or as a text that contains it.
const isSameValue = (a, b) => rawText(a) === rawText(b) || compactJson(rawText(a)) === compactJson(rawText(b));
const compactJson = (text) => (/^\s*[[{]/.test(text) ? text.match(JSON_TOKENS).join("") : text);

// The turns of an attempt as a tree. A turn is a message, or a step: a reply of a model, a tool call or another step. Messages that
// an earlier request had, or that are an earlier reply, and results of tools that are known from their steps, are omitted.
class Transcript {
  constructor(run, span) {
    Object.assign(this, { run, span, turns: [] });
    this.requests = []; // The complete list of messages of each model step, and its number.
    this.replies = []; // Replies that no request has repeated yet.
    this.calls = []; // Tool calls that replies have requested.
    const callers = [];
    for (const [depth, step] of stepsWithDepth(run, run.stepsOf.get(span) || [])) {
      callers.length = depth;
      callers.push(this.add(step, callers.at(-1)?.turns ?? this.turns));
    }
  }

  add(step, turns) {
    const { run } = this, source = sourceOf(run, step), content = (source >= 0 && run.steps.content[source]) || {};
    const kind = source < 0 ? "other" : run.stepKinds[run.steps.kind[source]], name = source < 0 ? "step" : run.stepNames[run.steps.name[source]];
    const fields = { step, source, kind, name, content, turns: [] };
    if (kind === "model") return this.addModelCall(fields, turns);
    const request = kind === "tool" ? this.requestedCall(name, content.input) : null;
    if (request) return Object.assign(request, fields, { kind: "tool", isExecuted: true, turns: request.turns });
    const turn = { ...fields, input: content.input };
    turns.push(turn);
    return turn;
  }

  addModelCall(fields, turns) {
    const { content, step } = fields;
    for (const [role, text, calls = [], callId = ""] of this.newMessages(step, content)) {
      if (role === "assistant" && this.isReply(text, calls)) continue;
      if (role === "tool" && this.addResult(text, callId)) continue;
      turns.push({ kind: "message", role, text, turns: [] });
      this.addCalls(calls, turns);
    }
    const [, text, calls = []] = content.reply || [];
    const turn = { ...fields, role: "assistant", text: content.reply === undefined ? content.output : text, calls };
    turns.push(turn);
    if (content.reply) this.replies.push({ text, calls: [...calls] });
    this.addCalls(calls, turns);
    return turn;
  }

  // The messages of a request that no earlier request of the attempt has: those that it records, if it continues another one.
  newMessages(step, content) {
    const messages = content.messages || [], keys = messages.map((message) => JSON.stringify(message));
    const previousRequest = content.continues ? this.requests.find(({ number }) => number === content.continues) : null;
    const all = [...(previousRequest?.keys || []), ...keys];
    const known = previousRequest ? 0 : Math.max(0, ...this.requests.filter((request) => request.keys.every((key, index) => key === keys[index])).map((request) => request.keys.length));
    this.requests.push({ number: this.run.steps.number[step], keys: all });
    return messages.slice(known);
  }

  // Whether a message is an earlier reply, or a part of one: some clients send each tool call as a message.
  isReply(text, calls) {
    const reply = this.replies.find((candidate) => (!text || rawText(candidate.text) === rawText(text)) && calls.every((call) => candidate.calls.some((other) => isSameCall(call, other))));
    if (!reply) return false;
    reply.calls = reply.calls.filter((call) => !calls.some((other) => isSameCall(call, other)));
    if (text) reply.text = "";
    if (!reply.calls.length && !rawText(reply.text)) this.replies.splice(this.replies.indexOf(reply), 1);
    return true;
  }

  addCalls(calls, turns) {
    for (const [name, input, id] of calls) {
      const turn = { kind: "tool", name, input, id, content: {}, step: -1, source: -1, turns: [] };
      turns.push(turn);
      this.calls.push(turn);
    }
  }

  // The call that a tool step executes: requested by a reply with the same name, and the same arguments if one has them.
  requestedCall(name, input) {
    const calls = this.calls.filter((call) => call.name === name && !call.isExecuted && call.result === undefined);
    return calls.find((call) => isSameValue(call.input, input)) ?? calls[0] ?? null;
  }

  // Add a tool's result, as it was sent to the model, to its call; return whether there is one.
  addResult(text, callId) {
    const openCalls = this.calls.filter((call) => call.result === undefined);
    const call = callId ? openCalls.find((candidate) => candidate.id === callId) : openCalls.length === 1 && !openCalls[0].id ? openCalls[0] : null;
    if (!call) return false;
    call.result = text;
    return true;
  }

  // All turns in order, as [depth, turn].
  *list(turns = this.turns, depth = 0) {
    for (const turn of turns) {
      yield [depth, turn];
      yield* this.list(turn.turns, depth + 1);
    }
  }
}

const isSameCall = ([name, input, id], [otherName, otherInput, otherId]) => (id && otherId ? id === otherId : name === otherName && isSameValue(input, otherInput));

function transcriptElement(run, span, drawer) {
  const steps = run.stepsOf.get(span) || [], reuse = reuseText(run, span, steps), key = `turns ${run.info.path} ${span}`;
  const turns = [...new Transcript(run, span).list()], error = run.errors[run.spans.details[span]?.error];
  const row = ([depth, turn], index) => turnElement(run, span, turn, depth, drawer, `${key} ${index}`);
  const list = el("ol", { class: "transcript", "aria-label": `Transcript of attempt ${run.spans.attempt[span]}` });
  const end = error ? el("li", { class: "turn end" }, el("span", { class: "turn-label", text: "error" }), el("span", { class: "error-text", text: oneLine(`${error[1]}: ${error[2]}`, PREVIEW_CHARS) })) : "";
  const isLong = turns.length > FIRST_TURNS + LAST_TURNS, lastTurns = turns.length - LAST_TURNS;
  const more = isLong ? el("li", { class: "turn more" }, link(`Show ${plural(lastTurns - FIRST_TURNS, "more step or message", "more steps and messages")}`, () => more.replaceWith(...turns.slice(FIRST_TURNS, lastTurns).map((turn, index) => row(turn, FIRST_TURNS + index))))) : "";
  list.append(...(isLong ? [...turns.slice(0, FIRST_TURNS).map(row), more, ...turns.slice(lastTurns).map((turn, index) => row(turn, lastTurns + index))] : turns.map(row)), end);
  return [reuse ? el("p", { class: "faint", text: reuse }) : "", turns.length ? list : "",
    run.stepsOmitted ? el("p", { class: "faint" }, "This page does not have all steps of the run; in full: ", drawer.showCommand(run, run.spans.trial[span])) : ""];
}

function turnElement(run, span, turn, depth, drawer, key) {
  const { steps } = run, isStep = turn.step >= 0, isFailed = isStep && steps.outcome[turn.step] === STEP_FAILED, isReused = isStep && steps.outcome[turn.step] === STEP_REUSED, isReplayed = isStep && Boolean(turn.content?.replayed);
  const label = turn.kind === "message" ? oneLine(turn.role, 20) || "message" : turn.kind === "model" ? "assistant" : turn.kind === "tool" ? "tool" : "step";
  const isText = (turn.kind === "message" || turn.kind === "model") && rawText(turn.text); // Then the content repeats the preview.
  const summary = [
    el("span", { class: "turn-label" }, label, isStep ? el("span", { class: "turn-number", text: groupDigits(steps.number[turn.step]) }) : ""),
    el("span", { class: `turn-preview${isText ? " text" : ""}` }, turnPreview(turn)),
    isStep ? stepTrack(run, span, turn, isFailed ? "failed" : isReused || isReplayed ? "reused" : "") : "",
    isStep ? el("span", { class: "step-time", text: isReused ? "reused" : isReplayed ? "replayed" : `${isFailed ? "✕ " : ""}${microseconds(steps.duration[turn.step])}` }) : "",
  ];
  const row = el("li", { class: `turn ${turn.kind}${isFailed ? " failed" : ""}${isReused || isReplayed ? " reused" : ""}` }, fold(summary, () => turnContent(run, span, turn, drawer), { isOpen: isFailed, "data-key": key }));
  row.style.marginLeft = `${Math.min(depth, 8)}em`;
  return row;
}

function turnPreview(turn) {
  const line = (value) => oneLine(rawText(value).trim(), PREVIEW_CHARS), error = turn.content?.error;
  const result = error === undefined ? (turn.content?.output === undefined ? turn.result : turn.content.output) : undefined;
  const end = error !== undefined ? [" → ", el("span", { class: "error-text", text: oneLine(error, PREVIEW_CHARS) })] : result === undefined ? [] : [" → ", line(result)];
  if (turn.kind === "message") return [line(turn.text)];
  if (turn.kind === "model") {
    const calls = (turn.calls || []).map(([name]) => name).join(", ");
    return error === undefined ? [rawText(turn.text) ? line(turn.text) : el("span", { class: "faint", text: calls ? `calls ${oneLine(calls, PREVIEW_CHARS)}` : "(empty reply)" })] : end.slice(1);
  }
  return [el("b", { text: oneLine(turn.name, 60) }), " ", el("span", { class: "faint", text: turn.input === undefined ? "" : line(turn.input) }), ...end];
}

function stepTrack(run, span, turn, outcome) {
  const { steps } = run, bar = el("i", { class: `step-bar ${turn.kind} ${outcome}` }), start = run.spans.start[span];
  const total = Math.max(1, 1e6 * (run.endOf(span) - run.startOf(span))), share = (time) => 100 * Math.min(1, Math.max(0, time / total));
  bar.style.left = `${share(steps.end[turn.step] - steps.duration[turn.step] - start)}%`;
  bar.style.width = `${share(steps.duration[turn.step])}%`;
  return el("span", { class: "step-track", "aria-hidden": "true" }, bar);
}

function turnContent(run, span, turn, drawer) {
  const { steps } = run, trial = run.spans.trial[span], content = turn.content || {};
  const part = (label, value) => (value === undefined ? "" : el("div", { class: "part" }, label ? el("h4", { text: label }) : "", drawer.content(value, run, trial)));
  if (turn.kind === "message") return [part("", turn.text)];
  const isReused = turn.step >= 0 && steps.outcome[turn.step] === STEP_REUSED;
  const usage = isReused ? [] : Object.entries(content.usage || {}).map(([name, value]) => amount(name, value));
  const from = turn.source < 0 ? "an earlier attempt" : `attempt ${run.spans.attempt[steps.span[turn.source]]}`;
  const notes = [turn.kind === "model" ? oneLine(turn.name, 80) : "", isReused ? `reused from ${from}` : "", ...usage].filter(Boolean).join(" · ");
  const isSent = turn.result !== undefined && content.output !== undefined && !isSameValue(turn.result, content.output);
  return [
    turn.kind === "model" ? part("input", content.input) : part(turn.kind === "tool" ? "arguments" : "input", turn.input),
    turn.kind === "model" && (rawText(turn.text) || !turn.calls?.length) && content.error === undefined ? part("", turn.text) : "",
    turn.kind === "model" ? "" : part("result", content.output ?? turn.result),
    isSent ? part("result as sent to the model", turn.result) : "",
    content.error === undefined ? "" : el("pre", { class: "error", text: escapeInvisible(content.error) }),
    content.shortened ? el("p", { class: "truncated" }, "The page has no room for its messages. In full: ", drawer.showCommand(run, trial, " --steps full")) : "",
    turn.step < 0 ? "" : el("p", { class: "faint" }, link(`seq ${groupDigits(steps.seq[turn.step])}`, () => drawer.onSeq(run, steps.seq[turn.step]), { title: "Show the state at the end of this step" }), notes ? ` · ${notes}` : ""),
  ];
}
