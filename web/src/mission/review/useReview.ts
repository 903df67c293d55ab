import { useEffect, useMemo, useReducer } from "react";
import type { ReviewFile } from "../../api/contract";
import { current, keepDecisions, progressOf, readDecisions, reduce, type Act, type Decisions } from "./decisions";
import { unitsOf } from "./units";

/** The review of a mission's files as far as this browser knows it; every decision is kept at once. */
export function useReview(mission: string, files: readonly ReviewFile[]) {
  const units = useMemo(() => unitsOf(files), [files]);
  const [state, act] = useReducer((before: Decisions, made: Act) => reduce(units, before, made), mission, readDecisions);
  useEffect(() => keepDecisions(mission, state), [mission, state]);
  return { units, state, act, unit: current(units, state), progress: progressOf(units, state) };
}
