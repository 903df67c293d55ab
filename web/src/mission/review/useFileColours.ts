import { useQuery } from "@tanstack/react-query";
import { useMemo } from "react";
import type { ChangeReview, MissionDetails, ReviewFile } from "../../api/contract";
import { fileChangeQuery } from "../../api/queries";
import type { Colours } from "../changes/colours";
import { languageOf } from "../changes/languages";
import type { DiffLine } from "../changes/patch";
import { useColours } from "../changes/useColours";

/**
 * Returns the colours of a file under review: by the whole old and new files, or by the hunks if those are
 * unavailable.
 */
export function useFileColours(mission: MissionDetails, review: ChangeReview, file: ReviewFile, hunks: readonly DiffLine[][]): Colours | null {
  const point = mission.checkpoints.find(({ tree }) => tree === review.tree)?.commit ?? "result";
  const wanted = !file.binary && languageOf(file.path) !== null;
  const { data, isError } = useQuery({ ...fileChangeQuery(mission.mission, file.path, "base", point), enabled: wanted, retry: false });
  const lines = useMemo(() => hunks.flat(), [hunks]);
  return useColours(file.path, lines, wanted ? (isError ? null : data) : undefined);
}
