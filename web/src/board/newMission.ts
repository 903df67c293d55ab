/** A new mission: as a person enters it in the form, and as the server expects it. */

export interface Wish {
  request: string;
  repo: string;
  agent: string;
  model: string;
  role: string;
  base: string;
  budget: string;
  time: string;
  attempts: string;
  checks: string;
  allow: string;
  forbid: string;
  plan: boolean;
  /** The breakpoints at which the mission pauses. */
  breakAt: readonly Breakpoint[];
}

export type Breakpoint = "plan" | "step" | "promote";

export const EMPTY: Wish = {
  request: "",
  repo: "",
  agent: "",
  model: "",
  role: "",
  base: "",
  budget: "",
  time: "",
  attempts: "",
  checks: "",
  allow: "",
  forbid: "",
  plan: false,
  breakAt: [],
};

/** Returns the errors in a wish, by field; the server checks the rest. */
export function problems(wish: Wish): Partial<Record<keyof Wish, string>> {
  const found: Partial<Record<keyof Wish, string>> = {};
  if (wish.request.trim() === "") found.request = "Say what is to be done.";
  if (wish.repo === "") found.repo = "Choose a repository.";
  if (wish.budget !== "" && !(Number(wish.budget) > 0)) found.budget = `A budget is a number of USD above 0, not “${wish.budget}”.`;
  if (wish.time !== "" && !/^\d+(\.\d+)?\s*[smhd]?$/.test(wish.time.trim())) found.time = `A time is written like 30m or 2h, not “${wish.time}”.`;
  if (wish.attempts !== "" && !/^[1-9]\d?$/.test(wish.attempts.trim())) found.attempts = "From 1 to 99.";
  return found;
}

/**
 * Returns the body of the request, with filled fields only. With the same `key` a repeated request is the same
 * mission.
 */
export function missionBody(wish: Wish, key: string): Record<string, unknown> {
  const lines = (text: string) => text.split("\n").flatMap((line) => line.trim() || []);
  const body: Record<string, unknown> = { request: wish.request.trim(), repo: wish.repo, key };
  for (const name of ["agent", "model", "role", "base", "time"] as const) {
    if (wish[name].trim()) body[name] = wish[name].trim();
  }
  for (const name of ["budget", "attempts"] as const) if (wish[name] !== "") body[name] = Number(wish[name]);
  for (const name of ["checks", "allow", "forbid"] as const) if (lines(wish[name]).length > 0) body[name] = lines(wish[name]);
  if (wish.plan) body["plan"] = "auto";
  // Without tasks there is no plan to look at.
  const breakAt = wish.breakAt.filter((place) => place !== "plan" || wish.plan);
  if (breakAt.length > 0) body["break_at"] = breakAt;
  return body;
}
