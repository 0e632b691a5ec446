"use strict";
(() => {
  const main = document.getElementById("main");
  const connection = document.getElementById("connection");
  const announcement = document.getElementById("announcement");
  const heading = document.querySelector("h1").textContent;
  let source, silence, announced = "", pending;

  // Changes `old` into `fresh` in place, so that focus, selection and scroll positions stay.
  const key = (node) => node.nodeType === Node.ELEMENT_NODE && (node.id || node.dataset.key);
  const update = (old, fresh) => {
    if (old.nodeName !== fresh.nodeName || key(old) !== key(fresh)) return old.replaceWith(fresh);
    if (old.nodeType !== Node.ELEMENT_NODE) {
      if (old.data !== fresh.data) old.data = fresh.data;
      return;
    }
    if (old.isEqualNode(fresh)) return;
    for (const { name } of [...old.attributes]) if (!fresh.hasAttribute(name)) old.removeAttribute(name);
    for (const { name, value } of fresh.attributes) if (old.getAttribute(name) !== value) old.setAttribute(name, value);
    updateChildren(old, fresh);
  };
  const updateChildren = (old, fresh) => {
    const kept = new Set([...fresh.childNodes].map(key));
    for (const node of [...old.childNodes]) if (key(node) && !kept.has(key(node))) node.remove();
    const byKey = new Map([...old.childNodes].filter(key).map((node) => [key(node), node]));
    let at = old.firstChild;
    const removeNext = () => {
      const next = at.nextSibling;
      at.remove();
      at = next;
    };
    for (const child of [...fresh.childNodes]) {
      const same = key(child) ? byKey.get(key(child)) : at && !key(at) ? at : null;
      // A node that is moved would lose the focus: what is in its way is removed instead.
      while (same && at && at !== same && !key(at)) removeNext();
      if (!same) {
        old.insertBefore(child, at);
        continue;
      }
      // Two nodes may have the same key.
      byKey.delete(key(child));
      if (same === at) at = at.nextSibling;
      else old.insertBefore(same, at);
      update(same, child);
    }
    while (at) removeNext();
  };

  // A screen reader hears the verdict when it changes, not each update, and not more often than every five seconds.
  const announce = () => {
    const verdict = main.querySelector("[data-announce]").textContent;
    document.title = heading + ": " + verdict;
    if (pending || verdict === announced) return;
    if (announced) announcement.textContent = verdict;
    announced = verdict;
    pending = setTimeout(() => { pending = undefined; announce(); }, 5000);
  };
  const show = (state, text) => {
    if (connection.dataset.state === "lost" && state === "live") announcement.textContent = "Connected again";
    if (connection.dataset.state !== "lost" && state === "lost") announcement.textContent = "Disconnected";
    connection.dataset.state = state;
    connection.textContent = text;
    main.classList.toggle("stale", state === "lost");
  };
  const lost = () => {
    if (connection.dataset.state !== "lost") show("lost", "Disconnected since " + new Date().toLocaleTimeString() + ", trying again");
  };
  const connect = () => {
    source = new EventSource("events");
    source.onmessage = (event) => {
      clearTimeout(silence);
      // The process sends something every ten seconds.
      silence = setTimeout(() => { lost(); source.close(); connect(); }, 25000);
      updateChildren(main, new DOMParser().parseFromString(event.data, "text/html").body);
      show("live", "Live, " + new Date().toLocaleTimeString());
      announce();
    };
    source.onerror = () => {
      lost();
      // A browser does not try again after an answer such as 503.
      if (source.readyState === EventSource.CLOSED) setTimeout(connect, 2000);
    };
  };
  announce();
  show("waiting", "Connecting");
  connect();
})();
