// The stored rows of one head: of a query the keys of largest weight, and what follows from them
// for all its other keys. A weight is rounded by at most 1.7e-4 of itself.
import {kLog16Error, kLog16Least} from "./data.js";

const kRounded = 2e-4;  // what rounding may add to the sum of a row

export class Rows {
  // rows as unpacked, lse(i) of this head, and the score of its sink (null: none).
  constructor(all, h, lse, sink) {
    const { from, count, k, keys, weights, none } = all;
    Object.assign(this, { all, h, from, count, k, keys, weights, none, lse, sink });
    this.base = h * count;
  }

  has(i) { return i >= this.from && i < this.from + this.count; }

  // Where the row of query i begins.
  start(i) { return (this.base + i - this.from) * this.k; }

  // The weight of a stored key, NaN in a row that is not a number, or undefined.
  find(i, j) {
    if (!this.has(i)) return undefined;
    if (Number.isNaN(this.lse(i))) return NaN;
    for (let n = this.start(i), end = n + this.k; n < end; ++n)
      if (this.keys[n] === j) return this.weights[n];
    return undefined;
  }

  // Calls use(key, weight), the largest weight first.
  each(i, use) {
    if (!this.has(i) || Number.isNaN(this.lse(i))) return;
    for (let n = this.start(i), end = n + this.k; n < end && this.keys[n] !== this.none; ++n)
      use(this.keys[n], this.weights[n]);
  }

  // Puts what is stored of the head in the order of its keys, `length` in number: of key j the
  // entries starts[j] to starts[j + 1] - 1. Kept with what was opened of the layer.
  orderByKey(length) {
    const ordered = this.all.byKey ??= [], { keys, k, count, h } = this, begin = this.base * k;
    if (ordered[h]) return;
    const starts = new Uint32Array(length + 1), isKey = (key) => key >= 0 && key < length;
    for (let n = begin; n < begin + count * k; ++n)
      if (isKey(keys[n])) ++starts[keys[n] + 1];
    for (let j = 0; j < length; ++j) starts[j + 1] += starts[j];
    const entries = new Uint32Array(starts[length]), next = starts.slice();
    for (let n = 0; n < count * k; ++n)
      if (isKey(keys[begin + n])) entries[next[keys[begin + n]]++] = n;
    ordered[h] = { starts, entries };
  }

  // Calls use(query, weight) for the stored weights of a key: of those in order, or of all.
  column(j, use) {
    const { keys, weights, k, from, count } = this, begin = this.base * k;
    const { starts, entries } = this.all.byKey?.[this.h] ?? {};
    const take = (n) => use(from + Math.floor(n / k), weights[begin + n]);
    if (starts)
      for (let at = starts[j]; at < starts[j + 1]; ++at) take(entries[at]);
    else
      for (let n = 0; n < count * k; ++n)
        if (keys[begin + n] === j) take(n);
  }

  // Whether every key that query i sees is stored.
  whole(i) {
    return this.has(i) && this.keys[this.start(i) + this.k - 1] === this.none &&
        !Number.isNaN(this.lse(i));
  }

  // What a key of query i that is not stored weighs at most: the least stored weight, or what the
  // stored ones and the sink leave.
  most(i) {
    if (!this.has(i)) return 1;
    let sum = 0, least = 1;
    this.each(i, (_, weight) => {
      sum += weight;
      least = weight;
    });
    const sink = this.sink === null ? 0 : Math.exp(this.sink - this.lse(i));
    const rest = Math.max(1 - sink - sum + kRounded * sum, kRounded);
    return Math.max(Math.min(least * (1 + kLog16Error), rest), kLog16Least);
  }
}
