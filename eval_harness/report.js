const PAGE = 100;
const NARROW = "(max-width: 46rem)";
const byId = (id) => document.getElementById(id);
const data = JSON.parse(byId("index").textContent);
const episodes = data.episodes.map(([run, index, reason, ret, success, turns, invalid, truncated, cut], position) => (
  { run, index, reason: data.reasons[reason], ret, success: success === 1, turns, invalid, truncated: truncated === 1, cut, position }
));
const words = (text) => text.replaceAll("_", " ");
const count = (n) => n.toLocaleString("en").replaceAll(",", "\u00a0");
const plural = (n, noun) => count(n) + " " + noun + (n === 1 ? "" : "s");
const number = (value) => String(Math.round(value * 1000) / 1000).replace("-", "\u2212");
const signed = (value) => (value > 0 ? "+" : "") + number(value);
let shown = [], rendered = 0, current = null, asked = 0, found = null, foundOf = "";

function make(tag, className, text) {
  const element = document.createElement(tag);
  if (className) element.className = className;
  if (text !== undefined) element.textContent = text;
  return element;
}

function setOptions(select, pairs, chosen) {
  select.replaceChildren(...pairs.map(([value, text]) => {
    const option = make("option", "", text);
    option.value = value;
    return option;
  }));
  select.value = pairs.some(([value]) => value === chosen) ? chosen : pairs[0][0];
}

// Leaderboards ------------------------------------------------------------------------------------------------------
for (const table of document.querySelectorAll("table.sortable")) {
  const heads = [...table.tHead.rows[0].cells], body = table.tBodies[0];
  heads.forEach((head, column) => head.firstChild.addEventListener("click", () => {
    const before = head.getAttribute("aria-sort");
    const sign = (before ? before === "ascending" : column > 0) ? -1 : 1;
    const key = (row) => column ? row.cells[column].dataset.key : row.cells[0].textContent;
    const compare = (a, b) => {
      const [x, y] = [key(a), key(b)];
      if (x === undefined || y === undefined) return (x === undefined) - (y === undefined);
      return sign * (column ? Number(x) - Number(y) : x.localeCompare(y));
    };
    for (const other of heads) other.removeAttribute("aria-sort");
    head.setAttribute("aria-sort", sign < 0 ? "descending" : "ascending");
    body.append(...[...body.rows].sort(compare));
  }));
}

// Transcripts, unpacked when they are needed ---------------------------------------------------------------------------
const kept = new Map();
function chunkOf(id) {
  if (!kept.has(id)) {
    const bytes = Uint8Array.from(atob(byId("chunk-" + id).textContent), (c) => c.charCodeAt(0));
    const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("deflate"));
    kept.set(id, new Response(stream).json());
    if (kept.size > 4) kept.delete(kept.keys().next().value);
  }
  return kept.get(id);
}
async function transcriptOf(episode) {
  return (await chunkOf(Math.floor(episode.position / data.chunk)))[episode.position % data.chunk];
}
const fold = (text) => text.toLowerCase();
function says(transcript, query) {
  return transcript.turns.some(([said, did]) => fold(said).includes(query) || fold(did).includes(query)) ||
    fold(transcript.last ?? "").includes(query);
}

/** Which episodes say the text; null once another search has begun. */
async function search(query) {
  const mine = ++asked, hits = new Set(), chunks = Math.ceil(episodes.length / data.chunk);
  for (let id = 0; id < chunks; id++) {
    const transcripts = await chunkOf(id);
    if (mine !== asked) return null;
    transcripts.forEach((one, i) => { if (says(one, query)) hits.add(id * data.chunk + i); });
    if (id % 10 === 9) {
      byId("count").textContent = `Searching, ${Math.round(100 * id / chunks)} %`;
      await new Promise((next) => setTimeout(next));
    }
  }
  return hits;
}

// What is listed ------------------------------------------------------------------------------------------------------
const OUTCOMES = [
  ["all", "All", () => true],
  ["success", "Success", (e) => e.success],
  ["failure", "No success", (e) => !e.success],
  ["invalid", "With invalid actions", (e) => e.invalid > 0],
  ["truncated", "Truncated (cut by a limit)", (e) => e.truncated],
  ["cut", "With actions cut at the token limit", (e) => e.cut > 0],
  ...data.reasons.map((reason) => ["end:" + reason, "Ended by: " + words(reason), (e) => e.reason === reason]),
];
const ORDERS = [
  ["index", "Episode", (a, b) => a.position - b.position],
  ["low", "Worst: lowest return first", (a, b) => a.ret - b.ret],
  ["high", "Best: highest return first", (a, b) => b.ret - a.ret],
  ["long", "Longest first", (a, b) => b.turns - a.turns],
  ["invalid", "Most invalid actions first", (a, b) => b.invalid - a.invalid],
];
const difference = (e) => e.other.ret - e.ret;
const PAIR_ORDERS = [
  ["apart", "Largest difference first", (a, b) => Math.abs(difference(b)) - Math.abs(difference(a))],
  ["worse", "Worst against the other first", (a, b) => difference(b) - difference(a)],
  ["better", "Best against the other first", (a, b) => difference(a) - difference(b)],
  ["index", "Episode", (a, b) => a.position - b.position],
];
const comparing = () => byId("compare").value !== "none";
const listOrders = () => comparing() ? PAIR_ORDERS : ORDERS;

/** The episodes of two runs that began alike and went otherwise: those of the first, each with its `other`. */
function disagreements() {
  const others = new Map(episodes.filter((e) => e.run === Number(byId("compare").value)).map((e) => [e.index, e]));
  const first = episodes.filter((e) => e.run === Number(byId("model").value) && others.has(e.index));
  const pairs = first.map((e) => ({ ...e, other: others.get(e.index) }));
  return [pairs.length, pairs.filter((e) => e.ret !== e.other.ret || e.success !== e.other.success)];
}

async function refresh() {
  const query = fold(byId("text").value.trim());
  if (query !== foundOf) {
    const hits = query ? await search(query) : (asked++, null);
    if (query && !hits) return;
    [found, foundOf] = [hits, query];
  }
  let all = episodes.length, from = episodes;
  if (comparing()) [all, from] = disagreements();
  const outcome = OUTCOMES.find(([value]) => value === byId("outcome").value)[2];
  const order = listOrders().find(([value]) => value === byId("order").value)[2];
  const run = byId("model").value;
  const said = (e) => !found || found.has(e.position) || (e.other && found.has(e.other.position));
  shown = from.filter((e) => (run === "all" || e.run === Number(run)) && outcome(e) && said(e)).sort(order);
  rendered = 0;
  byId("count").textContent = comparing() ? `${plural(shown.length, "disagreement")} in ${plural(all, "episode")} of both` :
    shown.length === all ? plural(all, "episode") : `${count(shown.length)} of ${plural(all, "episode")}`;
  byId("list").replaceChildren();
  byId("list").scrollTop = 0;
  document.querySelector(".browser").classList.toggle("nothing", !shown.length);
  document.querySelector(".browser").classList.toggle("pairs", comparing());
  if (shown.length) {
    renderMore();
    const again = shown.find((e) => e.position === current?.position && !e.other === !current.other);
    open(again ?? shown[0]);
  } else {
    current = null;
    const reset = make("button", "step", "Show all episodes");
    reset.onclick = () => {
      byId("model").value = byId("outcome").value = "all";
      byId("text").value = "";
      settle();
      byId("model").focus();
    };
    byId("transcript").replaceChildren(make("p", "empty", "No episode matches these filters."), reset);
  }
}

function renderMore() {
  const list = byId("list");
  list.querySelector(".more")?.parentElement.remove();
  for (const episode of shown.slice(rendered, rendered + PAGE)) list.append(row(episode));
  rendered = Math.min(rendered + PAGE, shown.length);
  if (rendered < shown.length) {
    const item = make("li"), more = make("button", "more", "Show more");
    more.onclick = () => {
      const next = list.children.length - 1;
      renderMore();
      list.children[next].firstChild.focus();
    };
    item.append(more);
    list.append(item);
  }
}

function row(episode) {
  const item = make("li"), button = make("button"), other = episode.other;
  const outcome = (e) => make("small", e.success ? "good" : "", (e.success ? "success: " : "") + words(e.reason));
  button.append(make("span", "", "Episode " + episode.index), make("span", "value", number(episode.ret)), outcome(episode));
  button.children[1].setAttribute("aria-label", "return " + number(episode.ret));
  if (other) {
    button.children[1].textContent += " \u2192 " + number(other.ret);
    button.children[1].setAttribute("aria-label", `returns ${number(episode.ret)} and ${number(other.ret)}`);
    button.append(make("small", "value", signed(difference(episode))), outcome(other));
  } else {
    button.append(make("small", "value", plural(episode.turns, "action")));
    if (episode.invalid) button.append(make("small", "wide bad", plural(episode.invalid, "invalid action")));
    if (data.runs.length > 1) button.append(make("small", "wide", data.runs[episode.run].label));
  }
  button.onclick = () => {
    open(episode, { chosen: true });
    if (matchMedia(NARROW).matches) byId("transcript").scrollIntoView();
  };
  button.episode = episode;
  if (episode === current) button.setAttribute("aria-current", "true");
  item.append(button);
  return item;
}

// One episode -----------------------------------------------------------------------------------------------------------
/** A paragraph of text in which what was searched for is marked. */
function paragraph(text) {
  const p = make("p"), low = fold(text);
  let from = 0;
  // Where folding changes the length of a text, its places are not those of the text.
  for (let at; foundOf && low.length === text.length && (at = low.indexOf(foundOf, from)) >= 0; from = at + foundOf.length) {
    p.append(text.slice(from, at), make("mark", "", text.slice(at, at + foundOf.length)));
  }
  p.append(text.slice(from));
  return p;
}

function message(who, className, text) {
  const box = make("div", "message " + className), head = make("header");
  head.append(make("span", "who", who));
  box.append(head, text ? paragraph(text) : make("p", "empty", "(nothing)"));
  return [box, head];
}

function turnItem([observation, action, reward, legal, cut], place, show) {
  const item = make("li");
  const [said] = message("Environment", "environment", observation);
  const [did, head] = message("Agent", legal ? "agent" : "agent invalid", action);
  if (!legal) head.append(make("span", "flag", "invalid action"));
  if (cut) head.append(make("span", "flag", "cut at the token limit"));
  head.append(make("span", "reward", "reward " + number(reward)));
  if (show) {
    const button = make("button", "draw", "draw");
    button.setAttribute("aria-label", "Draw the state after action " + (place + 1));
    button.onclick = () => show(place + 1);
    head.append(button);
  }
  item.append(said, did);
  return item;
}

/** The pictures of an episode: one at a time, with a slider over its actions. */
function gallery(paint, total, turns) {
  const box = make("figure", "gallery"), place = make("div", "canvas"), controls = make("div", "controls");
  const slider = make("input"), told = make("figcaption");
  Object.assign(slider, { type: "range", min: 0, max: total, step: 1 });
  slider.setAttribute("aria-label", "State after this many actions");
  const show = (k, follow) => {
    const [svg, text, caption] = paint(k);
    svg.setAttribute("role", "img");
    svg.setAttribute("aria-label", text);
    place.replaceChildren(svg);
    slider.value = k;
    slider.setAttribute("aria-valuetext", `after ${k} of ${total} actions`);
    told.textContent = (k ? `after action ${k} of ${total}` : "at the start") + (caption && k === total ? `. ${caption}` : "");
    [...turns.children].forEach((item, i) => item.classList.toggle("drawn", i === k - 1));
    back.disabled = k === 0;
    next.disabled = k === total;
    if (follow && !matchMedia(NARROW).matches) {
      const pane = byId("transcript"), item = turns.children[Math.max(k - 1, 0)];
      const way = item.getBoundingClientRect().top - pane.getBoundingClientRect().top - 60;
      pane.scrollTop += way;
    }
  };
  const step = (text, label, by) => {
    const button = make("button", "step", text);
    button.setAttribute("aria-label", label);
    button.onclick = () => show(Number(slider.value) + by, true);
    return button;
  };
  const back = step("\u2039", "One action back", -1), next = step("\u203a", "One action on", 1);
  slider.oninput = () => show(Number(slider.value), true);
  controls.append(back, slider, next);
  box.append(place, controls, told);
  return [box, show];
}

function command(label, text) {
  const box = make("div", "command"), code = make("code", "", text), button = make("button", "step", "Copy");
  code.tabIndex = 0;
  button.setAttribute("aria-label", "Copy: " + label.toLowerCase());
  button.onclick = async () => {
    try {
      await navigator.clipboard.writeText(text);
      button.textContent = "Copied";
    } catch { // not allowed here: it is marked, for the keyboard to copy
      getSelection().selectAllChildren(code);
      button.textContent = "Marked";
    }
    setTimeout(() => { button.textContent = "Copy"; }, 2000);
  };
  box.append(make("span", "", label), code, button);
  return box;
}

function article(episode, transcript) {
  const run = data.runs[episode.run], parts = [], turns = make("ol", "turns"), played = make("div", "played");
  const paint = painterOf(run.picture, transcript, data.mazes);
  let show = null;
  if (paint) {
    const [box, shower] = gallery(paint, transcript.turns.length, turns);
    show = shower;
    played.append(box);
  }
  turns.append(...transcript.turns.map((turn, i) => turnItem(turn, i, show)));
  if (show) show(transcript.turns.length, false);
  const talk = make("div", "talk");
  talk.append(turns);
  if (transcript.last !== null) talk.append(message("Environment", "environment", transcript.last)[0]);
  const end = make("p", "end");
  end.append(
    make("span", episode.success ? "good" : "bad", episode.success ? "Success" : "No success"),
    `: ${words(episode.reason)}${episode.truncated ? " (truncated)" : ""} after ${plural(episode.turns, "action")}, return ${number(episode.ret)}`,
  );
  talk.append(end);
  played.append(talk);
  const about = make("details", "about"), names = make("dl");
  for (const [name, value] of Object.entries(transcript.about)) names.append(make("dt", "", name), make("dd", "", value));
  about.append(make("summary", "", "Seed, options and what was hidden from the agent"), names);
  parts.push(played, command("Watch it again", `lmrl play --from ${run.from}${episode.index}`), command("Play it yourself", transcript.play), about);
  return parts;
}

function heading(episode) {
  const bar = make("div", "bar"), title = make("div"), steps = make("div", "steps"), run = data.runs[episode.run];
  const place = shown.indexOf(episode);
  const by = episode.other ? `${run.label} against ${data.runs[episode.other.run].label}, ${run.task}` : run.label + ", " + run.task;
  title.append(make("h3", "", "Episode " + episode.index), make("p", "", by));
  for (const [text, target] of [["Previous", shown[place - 1]], ["Next", shown[place + 1]]]) {
    const step = make("button", "step", text);
    step.disabled = target === undefined;
    step.onclick = async () => {
      await open(target, { reveal: true, chosen: true });
      const again = [...byId("transcript").querySelectorAll(".steps .step")].find((s) => s.textContent === text);
      (again.disabled ? byId("transcript") : again).focus({ preventScroll: true });
    };
    steps.append(step);
  }
  bar.append(title, steps);
  return bar;
}

async function open(episode, { reveal = false, chosen = false } = {}) {
  current = episode;
  while (reveal && rendered <= shown.indexOf(episode)) renderMore();
  for (const button of byId("list").querySelectorAll("button:not(.more)")) {
    if (button.episode === episode) {
      button.setAttribute("aria-current", "true");
      if (reveal) button.scrollIntoView({ block: "nearest" });
    } else button.removeAttribute("aria-current");
  }
  const both = episode.other ? [episode, episode.other] : [episode];
  const transcripts = await Promise.all(both.map(transcriptOf));
  if (current !== episode) return; // another one was opened meanwhile
  const parts = [heading(episode)];
  if (episode.other) {
    const sides = make("div", "sides");
    both.forEach((one, i) => {
      const side = make("section"), title = make("h4", "", data.runs[one.run].label);
      side.append(title, ...article(one, transcripts[i]));
      sides.append(side);
    });
    parts.push(sides);
  } else parts.push(...article(episode, transcripts[0]));
  byId("transcript").replaceChildren(...parts);
  byId("transcript").scrollTop = 0;
  if (chosen) history.replaceState(null, "", `#episode-${episode.position}`);
}

byId("list").addEventListener("keydown", (event) => {
  const step = { ArrowDown: 1, ArrowUp: -1 }[event.key], item = event.target.closest("li");
  if (!step || !item) return;
  event.preventDefault();
  let next = step > 0 ? item.nextElementSibling : item.previousElementSibling;
  if (next?.firstChild.className === "more") { renderMore(); next = item.nextElementSibling; }
  if (next) { next.firstChild.focus(); open(next.firstChild.episode, { chosen: true }); }
});
byId("list").addEventListener("scroll", (event) => {
  const list = event.currentTarget;
  if (rendered < shown.length && list.scrollTop + list.clientHeight > list.scrollHeight - 400) renderMore();
});

// Filters ----------------------------------------------------------------------------------------------------------------
const tasks = new Set(data.runs.map((run) => run.task)).size;
const nameOf = (run) => tasks > 1 ? run.label + ", " + run.task : run.label;
const numbered = data.runs.map((run, i) => [String(i), nameOf(run), run.group]);
const partnersOf = (i) => numbered.filter(([other, , group]) => other !== i && group === data.runs[i].group);
const comparable = numbered.filter(([i]) => partnersOf(i).length);

/** What can be compared depends on the model, and the orders on whether two are compared. */
function settle() {
  const model = byId("model").value, before = byId("compare").value;
  const choices = model === "all" ? comparable : partnersOf(model);
  setOptions(byId("compare"), [["none", "Nothing"], ...choices], model === "all" ? "none" : before);
  // The order that was chosen stays as long as there is the same choice.
  const same = byId("order").options.length && byId("order").options[0].value === listOrders()[0][0];
  setOptions(byId("order"), listOrders(), same ? byId("order").value : listOrders()[0][0]);
  return refresh();
}
function choosePair() {
  const other = byId("compare").value;
  if (other !== "none" && byId("model").value === "all") byId("model").value = partnersOf(other)[0][0];
  return settle();
}

setOptions(byId("model"), [["all", "All models"], ...numbered], "all");
setOptions(byId("outcome"), OUTCOMES, "all");
byId("compare-label").hidden = !comparable.length;
byId("model").onchange = settle;
byId("compare").onchange = choosePair;
for (const id of ["outcome", "order"]) byId(id).onchange = refresh;
let typing = 0;
byId("text").oninput = () => { clearTimeout(typing); typing = setTimeout(refresh, 250); };
for (const part of document.querySelectorAll(".filters, .browser")) part.hidden = false;
const named = episodes[Number(/^#episode-(\d+)$/.exec(location.hash)?.[1] ?? NaN)];
if (named) current = named;
settle().then(() => {
  if (named) { open(named, { reveal: true }); byId("transcripts-title").scrollIntoView(); }
});
