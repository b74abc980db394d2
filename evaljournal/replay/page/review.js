// The page on which people label the outputs of a sample, one at a time. A label counts as saved when the server has synced it.
"use strict";

const KEYS = [["1 … 9", "the label with this number"], ["n", "write a note; Esc or Ctrl-Enter leaves it"], ["s", "skip; skipped outputs come again at the end"], ["u", "undo the last label"], ["← →", "previous and next output"], ["?", "this list"]];
const MAX_KEYS = 9;

class Review {
  constructor(state) {
    this.main = document.getElementById("page");
    this.keys = document.getElementById("keys");
    this.skipped = new Set();
    this.history = []; // What `undo` restores: [index, label, note].
    this.details = new Map();
    this.queue = Promise.resolve(); // Labels, undos and changes of the reviewer happen one after the other, in the order of the clicks.
    this.pending = 0;
    this.use(state);
    this.main.removeAttribute("aria-busy");
    document.addEventListener("keydown", (event) => this.onKey(event));
    this.next(-1);
  }

  use(state) {
    Object.assign(this, state);
    document.title = `${oneLine(this.question, 40)} · review of ${oneLine(this.path, 60)}`;
  }

  get isSaving() { return this.pending > 0; }

  inTurn(action) {
    this.pending += 1;
    this.queue = this.queue.then(action).catch((error) => this.report(error.message, true)).finally(() => { this.pending -= 1; });
    return this.queue;
  }

  get item() { return this.trials[this.index]; }
  get labeled() { return this.trials.filter(({ label }) => label !== null).length; }

  // Go to the next output without a label after this one; when there is none, to one that was skipped.
  next(from) {
    const order = [...this.trials.keys()].map((_, offset) => (from + 1 + offset) % this.trials.length).filter((index) => this.trials[index].label === null);
    const index = order.find((other) => !this.skipped.has(other));
    if (index === undefined) this.skipped.clear();
    this.go(index ?? order[0] ?? -1);
  }

  async go(index) {
    this.index = index;
    this.draw();
    if (index < 0) return;
    try {
      await this.load(index);
      if (this.index === index) this.draw();
      const following = (index + 1) % this.trials.length;
      await this.load(following); // The next one is shown without delay.
    } catch (error) { this.report(error.message, true); }
  }

  async load(index) {
    if (!this.details.has(index)) this.details.set(index, await request(`trial?index=${index}`));
  }

  draw() {
    const left = this.trials.length - this.labeled;
    const head = el("header", {}, el("h1", { text: `${oneLine(this.question, 60)}: ${groupDigits(this.labeled)} of ${plural(this.trials.length, "output")} labeled` }),
      el("button", { type: "button", class: "quiet", "aria-label": "Keys", text: "?", onclick: () => this.showKeys() }),
      el("label", {}, "reviewer ", el("input", { id: "reviewer", size: 12, maxlength: 100, value: this.reviewer, onchange: (event) => this.changeReviewer(event.target.value) })));
    const progress = el("progress", { max: this.trials.length, value: this.labeled, "aria-label": "Labeled outputs" });
    const facts = el("p", { class: "eyebrow" }, el("span", { text: oneLine(this.path, 120) }), el("span", { text: this.sample }), this.is_blind ? el("span", { text: "blind: scores are hidden" }) : "");
    if (this.index < 0) {
      this.main.replaceChildren(head, progress, facts, el("p", { class: "done", role: "status", text: left ? "" : "All outputs of the sample are labeled." }), el("p", { class: "faint" }, "Results: ", el("code", { text: escapeInvisible(this.command) })), this.bar());
      return;
    }
    const details = this.details.get(this.index);
    this.main.replaceChildren(head, progress, facts, ...(details ? this.content(details) : [el("p", { role: "status", text: "Loading …" })]), this.bar());
    window.scrollTo(0, 0);
  }

  content({ trial, input, expected, output, trajectory, scores }) {
    const part = (title, value, attributes) => (value === null ? "" : el("section", attributes, el("h2", { text: title }), valueElement(value)));
    return [el("h2", { class: "trial", text: `${groupDigits(this.index + 1)}. ${oneLine(trial, 200)}` }), part("Input", input), part("Expected", expected), part("Output", output, { class: "output" }),
      trajectory ? fold("Trajectory", () => el("pre", { dir: "auto", text: escapeInvisible(trajectory) }), { class: "trajectory" }) : "",
      scores && scores.length ? el("table", { class: "scores" }, el("tbody", {}, scores.map(([name, value, reason]) => el("tr", {}, el("th", { scope: "row", text: oneLine(name, 60) }), el("td", {}, scoreMark(value)), el("td", { class: "reason", text: escapeInvisible(reason) }))))) : ""].filter(Boolean);
  }

  bar() {
    const item = this.item, undo = el("button", { type: "button", id: "undo", disabled: !this.history.length, onclick: () => this.undo() }, "undo ", el("kbd", { text: "u" }));
    this.saved = el("span", { class: "saved", role: "status", text: this.savedText || "" });
    if (!item) return el("div", { class: "bar" }, el("div", { class: "actions" }, undo, this.saved));
    const button = (text, index) => el("button", { type: "button", "data-label": text, "aria-pressed": String(item.label === text), onclick: () => this.label(text) }, `${oneLine(text, 60)} `, index < MAX_KEYS ? el("kbd", { text: String(index + 1) }) : "");
    const other = this.takes_text ? el("form", { onsubmit: (event) => { event.preventDefault(); this.label(event.target.elements.value.value); } }, el("input", { name: "value", "aria-label": "Another label", placeholder: "another label", maxlength: 200 }), el("button", { type: "submit", text: "save" })) : "";
    this.note = el("textarea", { id: "note", rows: 2, maxlength: 4000, "aria-label": "Note", hidden: !item.note, onchange: (event) => this.changeNote(item, event.target.value) });
    this.note.value = item.note;
    return el("div", { class: "bar" }, el("div", {}, this.note), el("div", { class: "label-buttons" }, this.choices.map(button), other),
      el("div", { class: "actions" }, el("button", { type: "button", id: "add-note", onclick: () => this.writeNote() }, "note ", el("kbd", { text: "n" })), el("button", { type: "button", id: "skip", onclick: () => this.skip() }, "skip ", el("kbd", { text: "s" })), undo, this.saved));
  }

  report(text, isFailure = false) {
    this.savedText = text;
    setText(this.saved, text);
    this.saved.classList.toggle("failed", isFailure);
  }

  // Save a label or, if it is empty, withdraw it. Returns whether it is on disk.
  async save(index, label, note) {
    const item = this.trials[index];
    this.report("saving …");
    try {
      const reply = await request("label", { trial: item.trial, label, note, reviewer: this.reviewer });
      Object.assign(item, { label: reply.label, note });
      this.report(label === "" ? `withdrawn: ${oneLine(item.trial, 40)}` : `saved: ${oneLine(item.trial, 40)} = ${oneLine(reply.label, 40)}`);
      return true;
    } catch (error) {
      this.report(`not saved: ${error.message}`, true);
      return false;
    }
  }

  // Label the output that is shown, as the reviewer whose name is shown.
  label(text) {
    const { index } = this, note = this.note.value, reviewer = document.getElementById("reviewer").value.trim();
    if (!text.trim()) return;
    this.inTurn(async () => {
      if (reviewer !== this.reviewer) throw new Error(`not saved: the reviewer is ${oneLine(this.reviewer, 40)}`);
      const item = this.trials[index], before = [index, item.label ?? "", item.note];
      if (!(await this.save(index, text, note))) return;
      this.history.push(before);
      this.skipped.delete(index);
      this.next(index);
    });
  }

  changeNote(item, note) {
    item.note = note;
    this.inTurn(async () => {
      const index = this.trials.indexOf(item); // -1: the reviewer has changed.
      if (index >= 0 && item.label !== null) await this.save(index, item.label, note);
    });
  }

  undo() {
    this.inTurn(async () => {
      const before = this.history.at(-1);
      if (!before || !(await this.save(...before))) return;
      this.history.pop();
      this.go(before[0]);
    });
  }

  skip() {
    if (!this.item) return;
    this.skipped.add(this.index);
    this.next(this.index);
  }

  writeNote() {
    if (!this.item) return;
    this.note.hidden = false;
    this.note.focus();
  }

  changeReviewer(name) {
    this.inTurn(async () => {
      try {
        this.use(await request(`state?reviewer=${encodeURIComponent(name)}`));
      } catch (error) {
        this.draw(); // Shows the earlier name again.
        throw error;
      }
      this.history = [];
      this.skipped.clear();
      this.report(`reviewer: ${oneLine(this.reviewer, 40)}`);
      this.next(-1);
    });
  }

  showKeys() {
    this.keys.replaceChildren(el("h2", { id: "keys-title", text: "Keys" }), el("dl", { class: "pairs" }, KEYS.map(([keys, text]) => el("div", {}, el("dt", {}, keys.split(" ").flatMap((key) => [el("kbd", { text: key }), " "])), el("dd", { text })))), link("Close", () => this.keys.close()));
    this.keys.showModal();
  }

  onKey(event) {
    if (event.ctrlKey || event.metaKey || event.altKey || this.keys.open) {
      if (event.key === "Enter" && event.target === this.note) this.note.blur();
      return;
    }
    if (event.target.closest?.("input, textarea")) {
      if (event.key === "Escape") event.target.blur();
      return;
    }
    const choice = /^[1-9]$/.test(event.key) && this.item ? this.choices[Number(event.key) - 1] : undefined;
    const actions = { n: () => this.writeNote(), s: () => this.skip(), u: () => this.undo(), "?": () => this.showKeys(), ArrowLeft: () => this.step(-1), ArrowRight: () => this.step(1) };
    const action = choice === undefined ? actions[event.key] : () => this.label(choice);
    if (!action) return;
    event.preventDefault();
    action();
  }

  step(by) {
    if (this.isSaving) return;
    this.go((Math.max(0, this.index) + by + this.trials.length) % this.trials.length);
  }
}

// Ask the server; with a body, POST it as JSON. An error has the server's message.
async function request(path, body) {
  const options = body === undefined ? {} : { method: "POST", headers: { "content-type": "application/json" }, body: JSON.stringify(body) };
  let reply;
  try { reply = await fetch(path, options); } catch { throw new Error("no connection to the server; start `evaljournal review` again and open the new address"); }
  if (!reply.ok) throw new Error((await reply.text()).trim() || `the server replied ${reply.status}`);
  return reply.json();
}

request("state").then((state) => { window.review = new Review(state); }).catch((error) => {
  document.getElementById("opening").textContent = `The review could not be opened: ${error.message}`;
});
