import { useCallback, useEffect, useMemo, useReducer } from "react";
import type { ReviewFile } from "../../api/contract";
import { current, keepDecisions, progressOf, readDecisions, reduce, type Act, type Decisions } from "./decisions";
import type { Notes } from "./notes";
import { unitsOf } from "./units";
import { useSharedNotes } from "./useSharedNotes";

/** The review of a mission's files; every decision is stored in this browser at once, then on the server. */
export function useReview(mission: string, tree: string, files: readonly ReviewFile[]) {
  const units = useMemo(() => unitsOf(files), [files]);
  const [state, act] = useReducer((before: Decisions, made: Act) => reduce(units, before, made), mission, readDecisions);
  useEffect(() => keepDecisions(mission, state), [mission, state]);
  const { decided, comments } = state;
  const notes = useMemo(() => ({ decided, comments }), [decided, comments]);
  useSharedNotes(mission, tree, notes, useCallback((merged: Notes) => act({ type: "merged", notes: merged }), []));
  return { units, state, act, unit: current(units, state), progress: progressOf(units, state) };
}
