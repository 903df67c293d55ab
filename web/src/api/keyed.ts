/** Requests that must take effect once even if their responses are lost. */
import { newKey } from "../newKey";
import { ApiError, post } from "./client";

/** Idempotency keys of unanswered requests: repeating a request reuses its key. */
export class KeyedRequests {
  private readonly keys = new Map<string, string>();

  async post<T>(path: string, body: unknown): Promise<T> {
    const asked = `${path} ${JSON.stringify(body)}`;
    const key = this.keys.get(asked) ?? newKey();
    this.keys.set(asked, key);
    try {
      const made = await post<T>(path, body, { "Idempotency-Key": key });
      this.keys.delete(asked);
      return made;
    } catch (failure) {
      if (!isLost(failure)) this.keys.delete(asked);
      throw failure;
    }
  }
}

/** Whether the outcome of a request is unknown: the server did not answer, or a proxy answered for it. */
function isLost(failure: unknown): boolean {
  return !(failure instanceof ApiError) || failure.status === 0 || failure.code.startsWith("http_5");
}
