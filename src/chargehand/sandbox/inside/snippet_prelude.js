/* What stands before a snippet of JavaScript: its console, and the way from its value to JSON.
   It is sent as one line, so that line numbers of the snippet hold: no comments to the end of a line. */
((print, finish, input) => {
  const {stringify} = JSON, {apply} = Reflect, {isArray} = Array, {isView} = ArrayBuffer;
  const evaluate = eval, Text = String, Fault = TypeError, then = Promise.prototype.then;
  const whole = String.prototype.toWellFormed, finite = Number.isFinite, Pending = Promise, Broken = Error;
  const boxes = [Map, Set, WeakMap, WeakSet, ArrayBuffer, SharedArrayBuffer, Promise, RegExp];
  const clean = (text) => apply(whole, Text(text), []);
  const kind = (value) => {
    for (const box of boxes) if (value instanceof box) return box.name;
    return isView(value) ? 'typed array' : '';
  };
  const refuse = (what) => { throw new Fault(what + ' is not JSON'); };
  function checked(key, value) {
    switch (typeof value) {
      case 'number': return finite(value) ? value : refuse(Text(value));
      case 'undefined': return isArray(this) ? refuse('undefined in an array') : value;
      case 'bigint': case 'function': case 'symbol': return refuse('a ' + typeof value);
      case 'object': return value !== null && kind(value) ? refuse('a ' + kind(value)) : value;
      default: return value;
    }
  }
  const shown = (value) => {
    if (typeof value === 'string') return value;
    if (typeof value === 'bigint') return Text(value) + 'n';
    if (typeof value === 'function') return '[function ' + value.name + ']';
    if (typeof value !== 'object' || value === null) return Text(value);
    if (value instanceof Broken) return Text(value) + (value.stack ? '\n' + value.stack : '');
    const large = (key, item) => typeof item === 'bigint' ? Text(item) + 'n' : item;
    try { return stringify(value, large) ?? Text(value); } catch { return Text(value); }
  };
  const line = (level) => (...values) => {
    let text = '';
    for (let i = 0; i < values.length; i++) text += (i ? ' ' : '') + shown(values[i]);
    print(level, clean(text));
  };
  globalThis.console = {
    debug: line('debug'), log: line('log'), info: line('info'), warn: line('warn'), error: line('error'),
    trace: line('debug'), dir: line('log'), table: line('log'),
    assert: (held, ...values) => { if (!held) console.error('assertion failed:', ...values); },
  };
  globalThis.input = input;
  const failed = (error) => {
    let name = '', message = '', stack = '';
    try {
      if (error instanceof Broken) {
        name = Text(error.name); message = Text(error.message); stack = Text(error.stack);
      } else { name = error === null ? 'null' : typeof error; message = shown(error); }
    } catch { message = 'the thrown value cannot be shown'; }
    finish('exception', clean(name), clean(message), clean(stack));
  };
  const deliver = (value) => {
    let text;
    try { text = value === undefined ? 'null' : stringify(value, checked) ?? refuse('undefined'); }
    catch (error) {
      if (error === null || error?.message === 'out of memory') return failed(error);
      return finish('not_json', clean(error?.name), clean(error?.message), '');
    }
    finish('value', text, '', '');
  };
  return (source) => {
    let value;
    try {
      value = evaluate(source);
      if (value instanceof Pending) apply(then, value, [deliver, failed]);
      else deliver(value);
    } catch (error) { failed(error); }
  };
})
