// The calls of judges: the prompt, the reply and the verdict, as text.
"use strict";

const JUDGED_TEXT = /<(answer-[0-9a-f]{12})>\n([^]*?)\n<\/\1>/g; // The tags that a judge's prompt has around what is judged.

// The reason of a score is the beginning of the judge's reply, without markup around it; a long one ends with "…".
function reasonEnd(reply, reason) {
  const text = rawText(reason).replace(/…$/, ""), start = text ? rawText(reply).indexOf(text) : -1;
  return start < 0 || rawText(reply).slice(0, start).trim().replace(/[*_`]/g, "") ? -1 : start + text.length;
}

// Scorer → the calls of its judge.
function judgeCallsByScorer(run, trial) {
  const result = new Map();
  for (const call of run.judgeCallsOf(trial)) result.set(call.scorer, [...(result.get(call.scorer) || []), call]);
  return result;
}

// A judge's calls, folded; a prompt that is the same as in the call before is shown once.
function judgeElement(run, trial, name, calls, reason, drawer) {
  const part = (label, nodes) => el("div", { class: "part" }, el("h4", { text: label }), nodes);
  const content = () => calls.flatMap((call, index) => [
    index && rawText(calls[index - 1].prompt) === rawText(call.prompt) ? "" : part("prompt", call.prompt === undefined ? el("p", { class: "truncated" }, "The page has no room for it. In full: ", drawer.showCommand(run, trial, " --json")) : promptNodes(call.prompt, run, trial, drawer)),
    call.reminder === undefined ? "" : part("reminder", drawer.content(call.reminder, run, trial)),
    call.reply === undefined ? "" : part(calls.length > 1 ? `reply ${index + 1} of ${calls.length}` : "reply", replyNodes(call.reply, reason, run, trial, drawer)),
  ]);
  const model = calls.at(-1).model;
  return fold(`Judge${model ? ` ${oneLine(model, 60)}` : ""}: prompt and ${plural(calls.length, "reply", "replies")}`, content, { class: "judge", "data-key": `judge ${run.info.path} ${name}` });
}

function promptNodes(prompt, run, trial, drawer) {
  const text = rawText(prompt), nodes = [];
  let end = 0;
  for (const match of text.matchAll(JUDGED_TEXT)) {
    nodes.push(escapeInvisible(text.slice(end, match.index).replace(/\n$/, "")), el("span", { class: "judged", "aria-label": "text to judge", text: escapeInvisible(match[2]) }));
    end = match.index + match[0].length;
  }
  nodes.push(escapeInvisible(end ? text.slice(end).replace(/^\n/, "") : text));
  return drawer.content(prompt, run, trial, nodes);
}

function replyNodes(reply, reason, run, trial, drawer) {
  const text = rawText(reply), end = reasonEnd(reply, reason);
  return drawer.content(reply, run, trial, end < 0 ? [escapeInvisible(text)] : [escapeInvisible(text.slice(0, end)), el("b", { class: "verdict", text: escapeInvisible(text.slice(end)) })]);
}
