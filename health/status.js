// The page is whole without this script. Once a second it fetches the page again
// and puts what has changed in its place, so that scrolled, selected and opened
// parts stay as they are.
"use strict";

const every = 1000;
let heard = performance.now(); // when the last answer with news came
let failed = 0;

// morph makes a live node equal to a new one.
function morph(live, fresh) {
  if (live.nodeType === Node.TEXT_NODE) {
    if (live.data !== fresh.data) live.data = fresh.data;
    return;
  }
  for (const { name, value } of fresh.attributes)
    if (live.getAttribute(name) !== value && !(name === "open")) live.setAttribute(name, value);
  for (const { name } of [...live.attributes])
    if (!fresh.hasAttribute(name) && name !== "open") live.removeAttribute(name);
  if (live.id === "live") return;

  const byID = new Map();
  const stays = new Set([...fresh.children].map((child) => child.id));
  for (const child of [...live.children]) {
    if (!child.id) continue;
    if (stays.has(child.id)) byID.set(child.id, child);
    else child.remove();
  }
  let at = live.firstChild;
  for (const want of [...fresh.childNodes]) {
    let have = want.id ? byID.get(want.id) : at;
    if (have && have.nodeName === want.nodeName && (want.id || !have.id)) {
      if (have !== at) live.insertBefore(have, at);
      else at = at.nextSibling;
      morph(have, want);
    } else {
      live.insertBefore(document.importNode(want, true), at);
    }
  }
  while (at) {
    const next = at.nextSibling;
    at.remove();
    at = next;
  }
}

async function update() {
  try {
    const answer = await fetch("./", { cache: "no-store", signal: AbortSignal.timeout(5000) });
    if (!answer.ok) throw new Error(answer.status);
    const fresh = new DOMParser().parseFromString(await answer.text(), "text/html");
    const [was, is] = [document.getElementById("main"), fresh.getElementById("main")];
    if (!is) throw new Error("another page");
    if (was.dataset.time !== is.dataset.time) heard = performance.now();
    morph(was, is);
    document.title = fresh.title;
    const icon = fresh.getElementById("icon").getAttribute("href");
    if (document.getElementById("icon").getAttribute("href") !== icon) document.getElementById("icon").href = icon;
    failed = 0;
  } catch {
    failed++;
  }
  say();
}

// say tells how old all this is.
function say() {
  const age = (performance.now() - heard) / 1000;
  const live = document.getElementById("live");
  live.className = age > 3.5 ? "lost" : "";
  live.textContent = age <= 3.5 ? "live" : (failed ? "no answer" : "no news") + " for " + Math.round(age) + " s";
}

// loop updates while somebody looks, and more rarely while nobody answers.
let wake = () => {};
async function loop() {
  for (;;) {
    if (!document.hidden) await update();
    await new Promise((resolve) => {
      wake = resolve;
      setTimeout(resolve, Math.min(every * (1 + failed), 10 * every));
    });
  }
}

document.addEventListener("visibilitychange", () => wake());
setInterval(() => { if (!document.hidden) say(); }, 250);
loop();
