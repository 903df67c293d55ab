/** Requests that must be done once, however often their answers are lost. */
import { newKey } from "../newKey";
import { ApiError, post } from "./client";

/** What was asked for and not answered yet, with its keys: the same request again has the same key. */
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

/** Whether nobody knows what became of a request: the server said nothing, or a proxy spoke for it. */
function isLost(failure: unknown): boolean {
  return !(failure instanceof ApiError) || failure.status === 0 || failure.code.startsWith("http_5");
}
