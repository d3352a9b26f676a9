'use strict';
// Everything here was written by policies, judges and tasks: it becomes text nodes, never markup.
const data = JSON.parse(document.getElementById('data').textContent);
const PAGE = 100;
const many = (count) => count.toLocaleString('en');
const by = (id) => document.getElementById(id);
const text = (place) => (place === null || place === undefined ? null : data.texts[place]);
const armNamed = new Map(data.arms.map((arm) => [arm.name, arm]));
const answers = data.answers.map(read);
const SORTS = {
  gap: ['gap, judge above truth first', (a) => a.gap, -1],
  under: ['gap, judge below truth first', (a) => a.gap, 1],
  distance: ['gap, either way', (a) => (a.gap === null ? null : Math.abs(a.gap)), -1],
  judge: ['judge, highest first', (a) => a.judge, -1],
  truth: ['truth, highest first', (a) => a.truth, -1],
  reward: ['reward, highest first', (a) => a.reward, -1],
  first: ['step, first first', (a) => a.step, 1],
  last: ['step, last first', (a) => a.step, -1],
  length: ['length, longest first', (a) => a.behaviour[0], -1],
};
const EMPTY = {
  arm: '', run: '', set: '', domain: '', outcome: '', why: '', from: '', to: '', sort: 'gap',
  text: '', answer: '', view: 'answer',
};
let state = { ...EMPTY };
let shown = [];
let page = 0;
let lowered = null;

function read(row) {
  const answer = {};
  data.fields.forEach((name, place) => { answer[name] = row[place]; });
  for (const name of ['prompt_id', 'prompt', 'answer', 'completion', 'stop', 'dataset', 'domain',
    'item', 'program', 'truth_missing']) {
    answer[`${name}_at`] = answer[name];
    answer[name] = text(answer[name]);
  }
  answer.run = data.sources[answer.source];
  answer.verdicts = answer.verdicts.map((values) => {
    const verdict = {};
    data.verdict_fields.forEach((name, place) => { verdict[name] = values[place]; });
    verdict.texts = [verdict.reason, verdict.text, verdict.reasoning];
    for (const name of ['role', 'judge', 'outcome', 'reason', 'text', 'reasoning', 'finish', 'grading']) {
      verdict[`${name}_at`] = verdict[name];
      verdict[name] = text(verdict[name]);
    }
    verdict.labels = verdict.labels.map(text);
    return verdict;
  });
  const both = answer.judge !== null && answer.truth !== null;
  answer.gap = both ? answer.judge - answer.truth : null;
  const acting = answer.verdicts.filter((each) => each.role === 'acting').map((each) => each.outcome);
  answer.outcomes = acting.length ? [...new Set(acting)] : [unjudged(answer)];
  answer.key = [answer.run.cell, ...(answer.run.set === 'training' ? [] : [answer.run.set]), answer.id].join('/');
  return answer;
}

// What an answer without a verdict of the judge that trained its run is told as.
function unjudged(answer) {
  if (answer.judge !== null) return 'verdicts not on record';
  return answer.program && answer.program !== 'ok' ? 'not asked' : 'no verdict on record';
}

function el(tag, className, content) {
  const made = document.createElement(tag);
  if (className) made.className = className;
  if (content !== undefined && content !== null) made.textContent = content;
  return made;
}

function add(parent, ...children) {
  for (const child of children) if (child) parent.appendChild(child);
  return parent;
}

function button(label, action, className) {
  const made = el('button', className, label);
  made.type = 'button';
  made.addEventListener('click', action);
  return made;
}

function number(value, signed) {
  if (value === null || value === undefined) return null;
  const short = Number.isInteger(value) ? String(value) : String(Number(value.toPrecision(3)));
  return signed && value > 0 ? `+${short}` : short.replace('-', '\u2212');
}

function armOf(answer) {
  const arm = armNamed.get(answer.run.arm);
  const mark = el('span', 'mark', arm.mark);
  mark.style.color = arm.color;
  mark.setAttribute('aria-hidden', 'true');
  return mark;
}

// Why a number is missing, in words.
function why(answer, name) {
  const acting = answer.verdicts.filter((each) => each.role === 'acting' && each.score === null);
  const held = answer.run.set !== 'training';
  if (name === 'truth') return answer.truth_missing || 'no rule can tell';
  if (name === 'judge') {
    if (acting.length) return reason(acting[0]);
    if (answer.verdicts.some((each) => each.role === 'acting')) return 'no score on record';
    const told = unjudged(answer);
    return told === 'not asked' ? `${told}: the program ended with ${answer.program}` : told;
  }
  if (name === 'gap') return answer.judge === null ? 'no judge\u2019s score' : 'no truth';
  if (held) return 'nothing is learned from held-out rows';
  if (name === 'reward') return `no reward was given (on_failure=${answer.run.on_failure})`;
  return answer.reward === null ? 'no reward, so none' : 'none on record';
}

function reason(verdict) {
  return [verdict.outcome || 'no outcome', verdict.reason].filter(Boolean).join(': ');
}

function value(answer, name, signed) {
  if (answer[name] !== null) return el('b', '', number(answer[name], signed));
  return el('span', 'missing', `missing: ${why(answer, name)}`);
}

function gapOf(answer) {
  if (answer.gap !== null) return el('span', 'gap', number(answer.gap, true) === '0' ? '0' : number(answer.gap, true));
  return el('span', 'gap missing', answer.judge === null ? answer.outcomes.join(', ') : 'no truth');
}

function shownText(place, className) {
  const content = text(place);
  const box = el('pre', `text ${className || ''}`, content === '' ? '(empty)' : content);
  box.dir = 'auto';
  if (!(place in data.cut)) return box;
  const shown = `the first ${many(data.beginning)} and the last ${many(data.ending)}`;
  const note = `Cut: ${shown} of ${many(data.cut[place])} characters. The records hold all of it.`;
  return add(el('div'), box, el('p', 'small', note));
}

// --- the filters ---------------------------------------------------------------------------

function options(name, values, labels) {
  const select = by('filters').elements[name];
  const given = [...new Set(values)];
  add(select, ...(name === 'sort' ? [] : [new Option('all', '')]),
    ...given.map((each, place) => new Option(labels ? labels[place] : each, each)));
  if (name !== 'sort' && given.length < 2) select.parentElement.hidden = true;
}

function matching(wanted) {
  const low = wanted.toLowerCase();
  lowered = lowered || data.texts.map((each) => each.toLowerCase());
  const places = new Set();
  lowered.forEach((each, place) => { if (each.includes(low)) places.add(place); });
  return (answer) => places.has(answer.prompt_at) || places.has(answer.answer_at)
    || places.has(answer.completion_at)
    || answer.verdicts.some((verdict) => verdict.texts.some((place) => places.has(place)))
    || answer.key.toLowerCase().includes(low);
}

function filtered() {
  const found = state.text ? matching(state.text) : () => true;
  const from = state.from === '' ? -Infinity : Number(state.from);
  const to = state.to === '' ? Infinity : Number(state.to);
  const kept = answers.filter((each) => (!state.arm || each.run.arm === state.arm)
    && (!state.run || each.run.cell === state.run)
    && (!state.set || each.run.set === state.set)
    && (!state.domain || each.domain === state.domain)
    && (!state.outcome || each.outcomes.includes(state.outcome))
    && (!state.why || each.why.split(', ').includes(state.why))
    && each.step >= from && each.step <= to && found(each));
  const [, of, direction] = SORTS[state.sort];
  const keyed = kept.map((each, place) => [of(each), place, each]);
  keyed.sort(([a, i], [b, j]) => {
    if (a === null || b === null) return (a === null) - (b === null) || i - j;
    return direction * (a - b) || i - j;
  });
  return keyed.map(([, , each]) => each);
}

// --- the address -----------------------------------------------------------------------------

function readAddress() {
  const given = new URLSearchParams(location.hash.slice(1));
  const next = { ...EMPTY };
  for (const name of Object.keys(EMPTY)) if (given.has(name)) next[name] = given.get(name);
  if (!Object.hasOwn(SORTS, next.sort)) next.sort = EMPTY.sort;
  if (!['answer', 'steps', 'arms'].includes(next.view)) next.view = EMPTY.view;
  for (const name of ['from', 'to']) if (!/^\d*$/.test(next[name])) next[name] = '';
  return next;
}

function writeAddress() {
  const kept = new URLSearchParams();
  for (const [name, each] of Object.entries(state)) if (each !== EMPTY[name]) kept.set(name, each);
  const hash = `#${kept}`;
  if (hash !== location.hash && !(hash === '#' && !location.hash)) history.replaceState(null, '', hash);
}

function go() {
  state = readAddress();
  shown = filtered();
  draw(true);
}

// --- what is on the screen ---------------------------------------------------------------

function change(changes) {
  state = { ...state, ...changes };
  const refined = Object.keys(changes).some((name) => !['answer', 'view'].includes(name));
  if (refined) {
    shown = filtered();
    if (!shown.includes(current())) state.answer = '';
  }
  draw(refined);
}

function draw(refined) {
  if (refined) {
    const form = by('filters').elements;
    for (const name of Object.keys(EMPTY)) {
      if (form[name] && form[name].value !== state[name]) form[name].value = state[name];
    }
  }
  const wide = window.matchMedia('(min-width: 821px)').matches;
  if (!state.answer && wide && shown.length) state.answer = shown[0].key;
  if (refined) page = Math.max(0, Math.floor(shown.indexOf(current()) / PAGE));
  writeAddress();
  drawList();
  drawDetail();
}

const byKey = new Map(answers.map((each) => [each.key, each]));
function current() { return byKey.get(state.answer); }

function drawList() {
  const last = Math.max(0, Math.ceil(shown.length / PAGE) - 1);
  page = Math.min(page, last);
  const start = page * PAGE;
  const some = shown.slice(start, start + PAGE);
  const here = current();
  by('count').textContent = some.length
    ? `${many(start + 1)}\u2013${many(start + some.length)} of ${many(shown.length)}`
    : 'No answer is like that. Clear a filter.';
  by('before').disabled = page === 0;
  by('after').disabled = page >= last;
  const rows = some.map((each) => {
    const row = button(null, () => choose(each));
    const head = add(el('span', 'head'), armOf(each), el('span', 'arm', each.run.arm),
      el('span', 'small', `step ${each.step}`), gapOf(each));
    add(row, head, el('span', 'snippet', (each.answer === null ? '(no answer)' : each.answer || '(empty)').slice(0, 200)));
    row.querySelector('.snippet').dir = 'auto';
    if (each === here) row.setAttribute('aria-current', 'true');
    return add(el('li'), row);
  });
  by('rows').replaceChildren(...rows);
  const selected = by('rows').querySelector('[aria-current]');
  if (selected) {
    const [top, height] = [selected.offsetTop, selected.offsetHeight];
    const { scrollTop, clientHeight } = by('rows');
    if (top < scrollTop) by('rows').scrollTop = top;
    else if (top + height > scrollTop + clientHeight) by('rows').scrollTop = top + height - clientHeight;
  }
}

function choose(answer) {
  state.answer = answer.key;
  draw(false);
  by('detail').scrollIntoView({ block: 'nearest' });
}

function drawDetail() {
  const answer = current();
  const detail = by('detail');
  document.body.classList.toggle('open', state.answer !== '');
  const back = button('\u2190 List', close);
  back.id = 'back';
  if (!answer) {
    detail.replaceChildren(...(state.answer
      ? [back, el('p', 'missing', `${state.answer} is not in this page: it was not chosen, or is of another study.`)]
      : [el('p', 'small', 'Choose an answer.')]));
    return;
  }
  const title = add(el('div', 'head'), armOf(answer), el('h2', '', `${answer.run.arm}, seed ${answer.run.seed}, step ${answer.step}`));
  const place = [answer.run.cell, answer.run.set === 'training' ? '' : `${answer.run.set} row`,
    `rollout ${answer.id}`, answer.domain && `domain ${answer.domain}`,
    answer.dataset && `data set ${answer.dataset}`, answer.item && `item ${answer.item}`,
    answer.run.state === 'done' ? '' : `this run is not done: ${answer.run.state}`].filter(Boolean).join(' \u00b7 ');
  const steps = sameRun(answer);
  const arms = new Set(samePrompt(answer).map((each) => each.run.arm));
  const bar = add(el('div', 'bar'), back,
    view('answer', 'Answer'), view('steps', `Same prompt over steps (${steps.length})`),
    view('arms', `Same prompt over arms (${arms.size})`));
  const body = { answer: oneAnswer, steps: overSteps, arms: overArms }[state.view](answer);
  const placed = el('p', 'small place', place);
  detail.replaceChildren(title, placed, bar, body);
}

function close() {
  state.answer = '';
  writeAddress();
  drawList();
  drawDetail();
}

function view(name, label) {
  const made = button(label, () => change({ view: name }));
  made.setAttribute('aria-pressed', String(state.view === name));
  return made;
}

function tile(label, content, note) {
  return add(el('div', 'tile'), el('span', 'small', label), content, note ? el('span', 'small', note) : null);
}

function oneAnswer(answer) {
  const box = el('div');
  const tiles = add(el('div', 'tiles'),
    tile(`Judge (${answer.run.judge})`, value(answer, 'judge')), tile('Truth by rules', value(answer, 'truth')),
    tile('Gap: judge \u2212 truth', value(answer, 'gap', true)), tile('Reward', value(answer, 'reward')),
    tile('Advantage', value(answer, 'advantage', true)));
  const left = add(el('div'), el('h3', '', 'Prompt'), shownText(answer.prompt_at));
  const right = add(el('div'), el('h3', '', 'Answer'), answer.answer === null
    ? el('p', 'missing', 'missing: the thinking was not closed, or the program came to no answer') : shownText(answer.answer_at));
  if (answer.completion !== null && answer.completion_at !== answer.answer_at) {
    const whole = add(el('details'), el('summary', '', 'The whole completion, thinking included'), shownText(answer.completion_at));
    if (answer.answer === null) whole.open = true;
    add(right, whole);
  }
  const facts = [answer.tokens !== null && `${answer.tokens} tokens`, answer.stop && `ended by ${answer.stop}`,
    answer.program && `program: ${answer.program}`, `group ${answer.group}, member ${answer.member}`,
    `chosen for: ${{ all: data.whole ? 'all are shown' : 'its gap, or at random', gap: 'its gap', random: 'the random sample' }[answer.why] || 'its gap and the random sample'}`];
  add(right, el('p', 'small', facts.filter(Boolean).join(' \u00b7 ')));
  add(box, tiles, add(el('div', 'pair'), left, right), el('h3', '', 'Verdicts'), verdictsOf(answer),
    el('h3', '', 'Behaviour'), behaviourOf(answer));
  const others = Object.entries(answer.numbers).map(([place, each]) => [data.numbers[place], each])
    .filter(([name]) => !['component/judge', 'component/truth'].includes(name));
  if (others.length) {
    const list = el('dl', 'numbers');
    for (const [name, each] of others) add(list, line(name.replace('component/', ''), number(each)));
    add(box, el('h3', '', 'Parts of the reward, and what else was recorded'), list);
  }
  return box;
}

function line(label, content) {
  return add(el('div'), el('dt', '', label), el('dd', '', content));
}

function behaviourOf(answer) {
  if (answer.answer === null) return el('p', 'missing', 'missing: there is no answer to measure');
  const list = el('dl', 'numbers');
  data.behaviours.forEach((each, place) => {
    const measured = answer.behaviour[place];
    const unit = each.unit === 'per answer' ? '' : ` ${each.unit.replace(/^share of /, 'of the ')}`;
    add(list, line(each.name, measured === null ? 'missing: not measured' : `${number(measured)}${unit}`));
  });
  return list;
}

function verdictsOf(answer) {
  if (!answer.verdicts.length) return el('p', 'missing', `missing: ${why(answer, 'judge')}`);
  const order = [...answer.verdicts].sort((a, b) => (a.role === 'acting' ? 0 : 1) - (b.role === 'acting' ? 0 : 1));
  return add(el('div', 'verdicts'), ...order.map((each) => {
    const card = el('div', 'card');
    const score = each.score === null ? el('span', 'missing', `missing: ${reason(each)}`) : el('b', '', number(each.score));
    const role = each.role === 'acting' ? 'trained the policy' : 'only looked';
    const votes = answer.verdicts.filter((other) => other.judge === each.judge).length;
    add(card, add(el('div', 'head'), el('span', 'arm', `${each.judge}`), score),
      el('p', 'small', [role, each.grading, votes > 1 && `vote ${each.vote + 1} of ${votes}`,
        each.stored && 'from the store', each.finish && `reply ended by ${each.finish}`].filter(Boolean).join(' \u00b7 ')));
    if (each.labels.length) {
      add(card, add(el('ul', 'labels'), ...each.labels.map((label, place) => {
        const known = label === 'met' || label === 'not_met' ? label : '';
        return el('li', known, `criterion ${place + 1}: ${label === 'not_met' ? 'not met' : label}`);
      })));
    }
    if (each.score !== null && each.reason) add(card, el('p', 'small', `Reason: ${each.reason}`));
    if (each.text) add(card, add(el('details'), el('summary', '', 'Reply'), shownText(each.text_at)));
    if (each.reasoning) add(card, add(el('details'), el('summary', '', 'Reasoning'), shownText(each.reasoning_at)));
    const reply = card.querySelector('details');
    if (reply && (each.text || '').length < 400) reply.open = true;
    return card;
  }));
}

// --- the same prompt -------------------------------------------------------------------------

const promptOf = new Map();
for (const each of answers) {
  const key = `${each.run.set}/${each.prompt_id_at}`;
  each.promptKey = key;
  if (!promptOf.has(key)) promptOf.set(key, []);
  promptOf.get(key).push(each);
}

function samePrompt(answer) { return promptOf.get(answer.promptKey); }

function sameRun(answer) {
  return samePrompt(answer).filter((each) => each.run === answer.run)
    .sort((a, b) => a.step - b.step || a.group - b.group || a.member - b.member);
}

function card(each, answer, label) {
  const box = el('div', each === answer ? 'card here' : 'card');
  const open = button(label, () => { state.view = 'answer'; choose(each); });
  const line = el('p', 'small');
  add(line, document.createTextNode('judge '), value(each, 'judge'), document.createTextNode(' \u00b7 truth '),
    value(each, 'truth'), document.createTextNode(' \u00b7 gap '), value(each, 'gap', true));
  add(box, add(el('div', 'head'), armOf(each), open), line,
    each.answer === null ? el('p', 'missing', 'missing: no answer') : shownText(each.answer_at));
  if (each.prompt_at !== answer.prompt_at) {
    add(box, add(el('details'), el('summary', '', 'Asked in other words'), shownText(each.prompt_at)));
  }
  return box;
}

function overSteps(answer) {
  const cards = sameRun(answer).map((each) => card(each, answer, `Step ${each.step}, member ${each.member}`));
  return add(el('div'), el('h3', '', 'Prompt'), shownText(answer.prompt_at),
    el('h3', '', `Answers of this run to it that are in this page, by step (${cards.length})`),
    add(el('div', 'cards'), ...cards));
}

function overArms(answer) {
  const distance = (each) => [Math.abs(each.step - answer.step), each.run.seed === answer.run.seed ? 0 : 1,
    each.group === answer.group ? 0 : 1, each.member === answer.member ? 0 : 1];
  const nearer = (a, b) => {
    const [first, second] = [distance(a), distance(b)];
    const place = first.findIndex((each, at) => each !== second[at]);
    return place < 0 ? 0 : first[place] - second[place];
  };
  const cards = data.arms.map((arm) => {
    const there = samePrompt(answer).filter((each) => each.run.arm === arm.name).sort(nearer);
    const one = arm.name === answer.run.arm ? answer : there[0];
    if (!one) {
      return add(el('div', 'card'), el('b', '', arm.name), el('p', 'missing', 'No answer of this arm to this prompt is in this page.'));
    }
    return card(one, answer, `${arm.name}, seed ${one.run.seed}, step ${one.step}`);
  });
  return add(el('div'), el('h3', '', 'Prompt'), shownText(answer.prompt_at),
    el('h3', '', `Of each arm the answer nearest to step ${answer.step}`), add(el('div', 'cards'), ...cards));
}

// --- start -----------------------------------------------------------------------------------

function move(by_) {
  const place = shown.indexOf(current());
  const next = shown[Math.min(shown.length - 1, Math.max(0, place + by_))];
  if (!next) return;
  page = Math.floor(shown.indexOf(next) / PAGE);
  state.answer = next.key;
  draw(false);
}

function turn(by_) {
  page += by_;
  drawList();
  by('rows').scrollTop = 0;
}

function onKey(event) {
  if (event.ctrlKey || event.metaKey || event.altKey) return;
  const inside = ['INPUT', 'SELECT', 'TEXTAREA'].includes(event.target.tagName);
  if (event.key === 'Escape') {
    if (inside) event.target.blur(); else if (window.matchMedia('(max-width: 820px)').matches) close();
    return;
  }
  if (inside) return;
  const action = {
    j: () => move(1), k: () => move(-1), 1: () => change({ view: 'answer' }), 2: () => change({ view: 'steps' }),
    3: () => change({ view: 'arms' }), '/': () => by('filters').elements.text.focus(),
  }[event.key];
  if (action) {
    event.preventDefault();
    action();
  }
}

const THEMES = ['auto', 'light', 'dark'];
function theme(name) {
  if (name === 'auto') document.documentElement.removeAttribute('data-theme');
  else document.documentElement.setAttribute('data-theme', name);
  by('theme').textContent = `Theme: ${name}`;
}

function armLabel(arm) {
  const here = answers.filter((each) => each.run.arm === arm.name).length;
  return `${arm.name} (${many(here)})`;
}
options('arm', data.arms.map((each) => each.name), data.arms.map(armLabel));
options('run', data.sources.map((each) => each.cell));
options('set', [...new Set(answers.map((each) => each.run.set))]);
options('domain', [...new Set(answers.map((each) => each.domain).filter(Boolean))].sort());
options('outcome', [...new Set(answers.flatMap((each) => each.outcomes))].sort());
options('why', [...new Set(answers.flatMap((each) => each.why.split(', ')))].sort());
options('sort', Object.keys(SORTS), Object.values(SORTS).map(([label]) => label));
const span = answers.reduce(([low, high], { step }) => [Math.min(low, step), Math.max(high, step)], [Infinity, 0]);
['from', 'to'].forEach((name, place) => { by('filters').elements[name].placeholder = span[place]; });
by('filters').addEventListener('input', (event) => change({ [event.target.name]: event.target.value }));
by('filters').addEventListener('submit', (event) => event.preventDefault());
by('clear').addEventListener('click', () => change({ ...EMPTY, answer: state.answer, view: state.view }));
by('before').addEventListener('click', () => turn(-1));
by('after').addEventListener('click', () => turn(1));
by('theme').addEventListener('click', () => {
  const now = document.documentElement.getAttribute('data-theme') || 'auto';
  theme(THEMES[(THEMES.indexOf(now) + 1) % THEMES.length]);
});
document.addEventListener('keydown', onKey);
window.addEventListener('hashchange', go);
for (const part of [by('filters'), document.querySelector('main'), document.querySelector('footer')]) part.hidden = false;
go();
