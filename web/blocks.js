// Weights by blocks of 64 x 64 cells, computed when first seen, in slices of a few milliseconds
// between frames, so that zooming never waits. The oldest blocks are forgotten.
export const kSide = 64;
const kFirst = 100;  // ms of work before the first frame: a head is rather whole than early
const kNext = 4;     // ms before any other
const kSlice = 24;   // ms of work between two frames
const kShow = 150;   // ms from a drawing that is not whole to the next
const kKept = 6000;  // blocks: 96 MB

export class Blocks {
  constructor(source, ready) {
    Object.assign(this, { source, ready });
    this.blocks = new Map();
    this.wanted = [];
    this.working = false;
    this.version = 0;  // grows with every block
    this.columns = Math.ceil(source.keys / kSide);
  }

  // The block that holds cell (i, j), or null while it is being computed.
  at(i, j) {
    const number = Math.floor(i / kSide) * this.columns + Math.floor(j / kSide);
    return this.blocks.get(number) ?? null;
  }

  // The blocks of the row of blocks that holds query i, by their column.
  rowAt(i) {
    const row = Math.floor(i / kSide) * this.columns;
    return Array.from({ length: this.columns }, (_, n) => this.blocks.get(row + n) ?? null);
  }

  value(i, j) { return this.at(i, j)[(i % kSide) * kSide + (j % kSide)]; }

  // Whether all blocks of a window are there.
  has(i0, i1, j0, j1) {
    for (let row = Math.floor(i0 / kSide); row * kSide < i1; ++row)
      for (let column = Math.floor(j0 / kSide); column * kSide < j1; ++column)
        if (!this.blocks.has(row * this.columns + column)) return false;
    return true;
  }

  // Asks for all blocks of a window; true if they are there.
  want(i0, i1, j0, j1) {
    this.wanted = [];
    for (let row = Math.floor(i0 / kSide); row * kSide < i1; ++row) {
      for (let column = Math.floor(j0 / kSide); column * kSide < j1; ++column) {
        const number = row * this.columns + column;
        if (!this.blocks.has(number)) this.wanted.push(number);
      }
    }
    this.work(this.version === 0 ? kFirst : kNext);
    if (this.wanted.length > 0 && !this.working) {
      this.working = true;
      this.told = performance.now();
      setTimeout(() => this.goOn());
    }
    return this.wanted.length === 0;
  }

  // Computes what is missing of a window, at once.
  finish(i0, i1, j0, j1) {
    this.want(i0, i1, j0, j1);
    this.work(Infinity);
  }

  work(milliseconds) {
    const end = performance.now() + milliseconds;
    while (this.wanted.length > 0 && performance.now() < end) this.compute(this.wanted.shift());
  }

  goOn() {
    this.work(kSlice);
    if (this.wanted.length > 0) setTimeout(() => this.goOn());
    else this.working = false;
    if (this.working && performance.now() < this.told + kShow) return;
    this.told = performance.now();
    this.ready();
  }

  compute(number) {
    const i0 = Math.floor(number / this.columns) * kSide, j0 = (number % this.columns) * kSide;
    const i1 = Math.min(i0 + kSide, this.source.queries),
          j1 = Math.min(j0 + kSide, this.source.keys);
    const values = new Float32Array(kSide * kSide);
    for (let i = i0; i < i1; ++i) this.source.segment(i, j0, j1, values, (i - i0) * kSide);
    if (this.blocks.size >= kKept) this.blocks.delete(this.blocks.keys().next().value);
    this.blocks.set(number, values);
    ++this.version;
  }

  // Calls use(i, j, value) for all cells of a window whose blocks are there.
  each(i0, i1, j0, j1, use) {
    for (let i = i0; i < i1; ++i) {
      for (let j = j0; j < j1;) {
        const end = Math.min(j1, (Math.floor(j / kSide) + 1) * kSide), block = this.at(i, j);
        const base = (i % kSide) * kSide;
        if (block)
          for (; j < end; ++j) use(i, j, block[base + (j % kSide)]);
        j = end;
      }
    }
  }
}
