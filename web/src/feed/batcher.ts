/**
 * Collects items that arrive in bursts. Flushes after `quiet` ms without a new item, at most `most` ms after the
 * first.
 */
export class Batcher<T> {
  private waiting: T[] = [];
  private first = 0;
  private timer: ReturnType<typeof setTimeout> | undefined;

  constructor(
    private readonly flush: (batch: T[]) => void,
    private readonly quiet = 250,
    private readonly most = 1000,
  ) {}

  add(item: T): void {
    const now = Date.now();
    if (this.waiting.length === 0) this.first = now;
    this.waiting.push(item);
    clearTimeout(this.timer);
    this.timer = setTimeout(() => this.empty(), Math.min(this.quiet, Math.max(0, this.first + this.most - now)));
  }

  private empty(): void {
    const batch = this.waiting;
    this.waiting = [];
    this.flush(batch);
  }
}
