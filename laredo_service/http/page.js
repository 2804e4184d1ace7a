// Keeps the page's content as it is now, and sends what its buttons ask for. A token that is typed
// stays in this page's memory. Without this script the page reloads itself and its buttons are off.
"use strict";

(() => {
  const EVERY_MS = 3000;
  const PATIENCE_MS = 10000;
  // The server itself waits up to 10 s for what an order starts.
  const POST_PATIENCE_MS = 15000;
  const content = document.getElementById("content");
  const connection = document.getElementById("connection");
  const token = document.getElementById("token");
  const open = new Map();
  const sent = new Map();
  let updated = new Date();

  const time = (moment) => moment.toLocaleTimeString();

  function showConnection(text, stale) {
    if (connection.textContent !== text) connection.textContent = text;
    document.body.classList.toggle("stale", stale);
  }

  // Buttons and their answers outlive the content that they were rendered in.
  function restore() {
    for (const details of content.querySelectorAll("details[id]")) {
      if (open.has(details.id)) details.open = open.get(details.id);
    }
    for (const button of content.querySelectorAll("button[data-post]")) {
      const state = sent.get(button.dataset.post);
      button.disabled = state !== undefined && state.busy;
      const answer = document.getElementById(button.getAttribute("aria-describedby"));
      if (state !== undefined) {
        answer.textContent = state.text;
        answer.classList.toggle("bad", state.bad);
      } else if (answer.dataset.ready) {
        answer.textContent = answer.dataset.ready;
      }
    }
    const title = content.querySelector("[data-title]");
    if (title !== null) document.title = title.dataset.title;
  }

  function replace(text) {
    const focused = document.activeElement && document.activeElement.id;
    const fresh = new DOMParser().parseFromString(text, "text/html");
    content.replaceChildren(...fresh.body.childNodes);
    restore();
    if (focused) document.getElementById(focused)?.focus({ preventScroll: true });
  }

  const isSelecting = () => {
    const selection = document.getSelection();
    return !selection.isCollapsed && content.contains(selection.anchorNode);
  };

  async function refresh() {
    try {
      const answer = await fetch(`page/content${location.search}`, {
        cache: "no-store",
        signal: AbortSignal.timeout(PATIENCE_MS),
      });
      if (!answer.ok) throw new Error(`${answer.status} ${answer.statusText}`);
      const text = await answer.text();
      // Text that is being marked, to be copied, stays.
      if (!isSelecting()) replace(text);
      updated = new Date();
      showConnection(`updated ${time(updated)}`, false);
    } catch (failure) {
      showConnection(`no answer since ${time(updated)}: what is shown is old`, true);
    }
  }

  async function keepFresh() {
    if (!document.hidden) await refresh();
    setTimeout(keepFresh, EVERY_MS);
  }

  async function post(path) {
    const headers = {};
    if (token !== null) {
      if (token.value === "") {
        sent.set(path, { busy: false, bad: true, text: "Type the token first, below the title." });
        restore();
        token.focus();
        return;
      }
      headers.Authorization = `Bearer ${token.value}`;
    }
    sent.set(path, { busy: true, bad: false, text: "asking …" });
    restore();
    let state;
    try {
      const answer = await fetch(path, {
        method: "POST",
        headers,
        credentials: "omit",
        signal: AbortSignal.timeout(POST_PATIENCE_MS),
      });
      const body = await answer.json();
      state = answer.ok
        ? { bad: false, text: `asked for at ${time(new Date())}` }
        : { bad: true, text: body.error || `${answer.status} ${answer.statusText}` };
    } catch (failure) {
      const late = `no answer within ${POST_PATIENCE_MS / 1000} s; it may still be done`;
      const text = failure.name === "TimeoutError" ? late : `not asked for: ${failure.message}`;
      state = { bad: true, text };
    }
    sent.set(path, { busy: false, ...state });
    restore();
    refresh();
  }

  content.addEventListener("click", (event) => {
    const button = event.target.closest("button[data-post]");
    if (button !== null) post(button.dataset.post);
    // A part of this page is shown without loading it again, which would forget the token.
    const link = event.target.closest("a[href^='?'], a[href='.']");
    if (link !== null && !event.ctrlKey && !event.metaKey && !event.shiftKey) {
      event.preventDefault();
      history.pushState(null, "", link.href);
      refresh().then(() => scrollTo(0, 0));
    }
  });
  addEventListener("popstate", refresh);
  // A details element's toggle doesn't bubble.
  content.addEventListener(
    "toggle",
    (event) => {
      if (event.target.id) open.set(event.target.id, event.target.open);
    },
    true,
  );
  document.addEventListener("visibilitychange", () => {
    if (!document.hidden) refresh();
  });
  document.documentElement.classList.add("live");
  restore();
  showConnection(`updated ${time(updated)}`, false);
  setTimeout(keepFresh, EVERY_MS);
})();
