// Shows the objects of one list of the Kubernetes API, and keeps them as they are in the cluster.
//
//   narthex proxy --www examples/page
//   http://localhost:8001/static/?path=/api/v1/namespaces/default/configmaps
'use strict';

const path = new URLSearchParams(location.search).get('path') ?? '/api/v1/pods';
const objects = new Map();
const element = (id) => document.getElementById(id);

function show(state) {
  element('state').textContent = state;
  const rows = [...objects.values()].map(({ metadata }) => {
    const row = document.createElement('tr');
    for (const text of [metadata.namespace ?? '', metadata.name, metadata.creationTimestamp]) {
      row.insertCell().textContent = text;
    }
    return row;
  });
  element('objects').replaceChildren(...rows);
}

// An answer, or the API server's own words for why there is none.
async function ask(query) {
  const url = new URL(path, location.origin);
  if (url.origin !== location.origin) throw new Error(`${path} is not of this server`);
  for (const [name, value] of Object.entries(query)) url.searchParams.set(name, value);
  const answer = await fetch(url, { headers: { Accept: 'application/json' } });
  if (answer.ok) return answer;
  const text = await answer.text();
  let message = text;
  try {
    message = JSON.parse(text).message ?? text;
  } catch {
    // Not every answer is a Status.
  }
  throw new Error(`${answer.status}: ${message}`);
}

// All objects as they are now, and the version of the list.
async function list() {
  const { items, metadata } = await (await ask({})).json();
  objects.clear();
  for (const object of items) objects.set(object.metadata.uid, object);
  return metadata.resourceVersion;
}

// What happens after that version, one event on each line, until the server ends the watch.
async function watch(resourceVersion) {
  const answer = await ask({ watch: 'true', allowWatchBookmarks: 'true', resourceVersion });
  const reader = answer.body.pipeThrough(new TextDecoderStream()).getReader();
  for (let rest = ''; ; ) {
    const { value, done } = await reader.read();
    if (done) return;
    const lines = (rest + value).split('\n');
    rest = lines.pop();
    for (const { type, object } of lines.map((line) => JSON.parse(line))) {
      if (type === 'ERROR') throw new Error(object.message);
      if (type === 'DELETED') objects.delete(object.metadata.uid);
      if (type === 'ADDED' || type === 'MODIFIED') objects.set(object.metadata.uid, object);
    }
    show('live');
  }
}

async function follow() {
  element('path').textContent = document.title = path;
  for (;;) {
    try {
      const version = await list();
      show('live');
      await watch(version);
    } catch (error) {
      show(error.message);
      await new Promise((resume) => setTimeout(resume, 2000));
    }
  }
}

follow();
