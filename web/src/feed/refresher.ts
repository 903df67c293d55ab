/**
 * Reloads what changed, one request at a time, and pauses after each for as long as it took (at most `mostRest`
 * ms). A mission with a long log takes the server seconds, and many of its events arrive per second.
 */
export class Refresher {
  private waiting = new Set<string>();
  private busy = false;

  constructor(
    private readonly ask: (names: readonly string[]) => Promise<unknown>,
    private readonly mostRest = 10_000,
  ) {}

  async add(names: Iterable<string>): Promise<void> {
    for (const name of names) this.waiting.add(name);
    if (this.busy) return;
    this.busy = true;
    while (this.waiting.size > 0) {
      const names = [...this.waiting];
      this.waiting.clear();
      const began = Date.now();
      await this.ask(names).catch(() => undefined);
      const rest = Math.min(Date.now() - began, this.mostRest);
      await new Promise((resolve) => setTimeout(resolve, rest));
    }
    this.busy = false;
  }
}
