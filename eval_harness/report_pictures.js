"use strict";
// Pictures of states from what a transcript says: for each kind a function that gives how the state looks after the
// first k actions, or null where the transcript is not what it should be. All numbers are computed here, and all texts
// become text nodes.
const SVG = "http://www.w3.org/2000/svg";
function draw(tag, attributes, ...children) {
  const element = document.createElementNS(SVG, tag);
  for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
  element.append(...children);
  return element;
}
const after = (transcript, k) => k < transcript.turns.length ? transcript.turns[k][0] : transcript.last;

// Maze: walls as squares, the way so far as a line.
const MOVES = { "move left": [0, -1], "move right": [0, 1], "move up": [-1, 0], "move down": [1, 0] };
function mazePicture(transcript, mazes) {
  const options = JSON.parse(transcript.about.options), start = JSON.parse(transcript.about.info).start;
  const rows = mazes[options.maze ?? "double_t"];
  const free = (cell) => rows[cell[0]]?.[cell[1]] !== undefined && rows[cell[0]][cell[1]] !== "#";
  if (!rows || !Array.isArray(start) || !free(start)) return null;
  const way = [start];
  for (const [, action] of transcript.turns) {
    const [r, c] = way.at(-1), move = Object.hasOwn(MOVES, action) ? MOVES[action] : [0, 0];
    const next = [r + move[0], c + move[1]];
    way.push(free(next) ? next : [r, c]);
  }
  const middle = ([r, c]) => [c * 20 + 10, r * 20 + 10];
  return (k) => {
    const svg = draw("svg", { viewBox: `0 0 ${rows[0].length * 20} ${rows.length * 20}`, class: "picture maze" });
    rows.forEach((row, r) => [...row].forEach((mark, c) => {
      if (mark === "#") svg.append(draw("rect", { class: "wall", x: c * 20, y: r * 20, width: 20.5, height: 20.5 }));
      if (mark === "G") {
        svg.append(draw("rect", { class: "goal", x: c * 20 + 1, y: r * 20 + 1, width: 18, height: 18, rx: 3 }));
        svg.append(draw("path", { class: "flag", d: `M${c * 20 + 7} ${r * 20 + 16}v-12l8 3.5l-8 3.5` }));
      }
    }));
    const path = way.slice(0, k + 1).map((cell) => middle(cell).join(" ")).join("L");
    svg.append(draw("path", { class: "way", d: "M" + path }));
    const [x0, y0] = middle(way[0]), [x, y] = middle(way[k]);
    svg.append(draw("circle", { class: "start", cx: x0, cy: y0, r: 4 }), draw("circle", { class: "you", cx: x, cy: y, r: 6.5 }));
    return [svg, `Maze, the agent in row ${way[k][0]}, column ${way[k][1]}`];
  };
}

// Wordle: a row per try, coloured by the marks that came back.
const MARKS = { g: "right place", y: "elsewhere", b: "not in the word" };
function wordlePicture(transcript) {
  const word = JSON.parse(transcript.about.info).word;
  const tries = transcript.turns.map(([, action], i) => {
    const marks = (after(transcript, i + 1) ?? "").replaceAll(" ", "");
    const letters = action.trim().replaceAll(" ", "").toLowerCase();
    return /^[gyb]{5}$/.test(marks) && /^[a-z]{5}$/.test(letters) ? { letters, marks } : null;
  });
  return (k) => {
    const rows = Math.max(6, tries.length), svg = draw("svg", { viewBox: `0 0 190 ${rows * 38}`, class: "picture wordle" });
    for (let r = 0; r < rows; r++) for (let c = 0; c < 5; c++) {
      const one = r < k ? tries[r] : null;
      const kind = r >= k ? "empty" : one ? one.marks[c] : "refused";
      svg.append(draw("rect", { class: "tile " + kind, x: c * 38 + 2, y: r * 38 + 2, width: 34, height: 34, rx: 3 }));
      if (one) svg.append(draw("text", { class: "letter " + kind, x: c * 38 + 19, y: r * 38 + 26 }, one.letters[c].toUpperCase()));
      else if (kind === "refused" && c === 2) svg.append(draw("text", { class: "letter refused", x: 95, y: r * 38 + 24 }, "not a word"));
    }
    const told = tries.slice(0, k).map((one) => one ? [...one.letters].map((l, i) => `${l} ${MARKS[one.marks[i]]}`).join(", ") : "not a word");
    return [svg, `Wordle. ${told.join("; ")}`, typeof word === "string" ? `Hidden word: ${word}` : ""];
  };
}

// Chess: the position of the observation, with the squares that changed since the one before.
const PIECES = {
  p: "M22.5 9a5.5 5.5 0 0 1 3.6 9.7c3 1.6 3.9 4.3 3.4 7.3h-2.7c.3 4.3 1.9 7 5.2 9v4h-19v-4c3.3-2 4.9-4.7 5.2-9h-2.7c-.5-3 .4-5.7 3.4-7.3A5.5 5.5 0 0 1 22.5 9z",
  r: "M11 8h5v4h4V8h5v4h4V8h5v8l-4 4v11l3 4v4H12v-4l3-4V20l-4-4z",
  n: "M14 39c0-9 9-11 8.5-18c-3 2-6 2.5-8 5.5l-4-2.5c.5-5 4-9 6.5-12l.5-5l4 3.5c9 .5 13.5 9 13.5 18.5V39z",
  b: "M22.5 6a3 3 0 0 1 2 5.2c5 3.5 7.5 8 7.5 12.3c0 3-1.5 5.5-4 7.5l3.5 4v4h-18v-4l3.5-4c-2.5-2-4-4.5-4-7.5c0-4.3 2.5-8.8 7.5-12.3A3 3 0 0 1 22.5 6zM22.5 17v8M18.5 21h8",
  q: "M8 12l6.5 9L16 9l6.5 10.5L29 9l1.5 12L37 12l-4.5 19l2 4v4h-24v-4l2-4z",
  k: "M21 4h3v3.5h3.5v3H24V15c8-3.5 13-.5 13 5.5c0 4.5-3 7.5-5.5 10.5l2 4v4h-22v-4l2-4C11 28 8 25 8 20.5c0-6 5-9 13-5.5v-4.5h-3.5v-3H21z",
};
const NAMES = { p: "pawn", r: "rook", n: "knight", b: "bishop", q: "queen", k: "king" };
function readFen(observation) {
  if (observation === null) return null;
  const text = observation[1] === " " ? observation.replaceAll("   ", "\n").replaceAll(" ", "").replaceAll("\n", " ") : observation;
  const ranks = text.split(" ")[0].split("/").map((rank) => rank.replace(/[1-8]/g, (n) => ".".repeat(Number(n))));
  return ranks.length === 8 && ranks.every((rank) => /^[prnbqkPRNBQK.]{8}$/.test(rank)) ? ranks.join("") : null;
}
function chessPicture(transcript) {
  const boards = [];
  for (let k = 0; k <= transcript.turns.length; k++) boards.push(readFen(after(transcript, k)) ?? boards.at(-1) ?? null);
  if (boards[0] === null) return null;
  return (k) => {
    const svg = draw("svg", { viewBox: "0 0 372 372", class: "picture chess" }), told = [];
    [...boards[k]].forEach((piece, square) => {
      const x = (square % 8) * 45 + 12, y = Math.floor(square / 8) * 45, name = "abcdefgh"[square % 8] + (8 - Math.floor(square / 8));
      const changed = k > 0 && boards[k - 1][square] !== piece ? " changed" : "";
      svg.append(draw("rect", { class: `square ${(square % 8 + Math.floor(square / 8)) % 2 ? "dark" : "light"}${changed}`, x, y, width: 45, height: 45 }));
      if (piece === ".") return;
      const white = piece !== piece.toLowerCase(), kind = piece.toLowerCase();
      svg.append(draw("path", { class: "piece " + (white ? "white" : "black"), d: PIECES[kind], transform: `translate(${x} ${y})` }));
      told.push(`${white ? "white" : "black"} ${NAMES[kind]} ${name}`);
    });
    for (let i = 0; i < 8; i++) {
      svg.append(draw("text", { class: "edge", x: i * 45 + 34.5, y: 371 }, "abcdefgh"[i]), draw("text", { class: "edge", x: 5, y: i * 45 + 27 }, String(8 - i)));
    }
    return [svg, "Chess board: " + told.join(", ")];
  };
}

const PAINTERS = { maze: mazePicture, wordle: wordlePicture, chess: chessPicture };
function painterOf(kind, transcript, mazes) {
  try {
    return Object.hasOwn(PAINTERS, kind ?? "") ? PAINTERS[kind](transcript, mazes) : null;
  } catch {
    return null; // the words are there all the same
  }
}
