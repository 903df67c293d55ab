/** The pages' queries to the server, each under one key. */
import { infiniteQueryOptions, queryOptions } from "@tanstack/react-query";
import { get } from "./client";
import type {
  FactorList,
  AccessLogPage,
  ChangeReview,
  CheckpointsDocument,
  DiffDocument,
  FileDifference,
  ForecastDocument,
  MissionChoices,
  MissionDetails,
  MissionPage,
  MissionReport,
  MissionReviews,
  PlanDocument,
  RollbackPreview,
  Session,
} from "./contract";

export interface MissionFilter {
  status?: string | undefined;
  project?: string | undefined;
  user?: string | undefined;
  since?: string | undefined;
  q?: string | undefined;
}

const PAGE = 50;

export function search(fields: Record<string, string | number | null | undefined>): string {
  const given = Object.entries(fields).filter(([, value]) => value !== undefined && value !== null && value !== "");
  return new URLSearchParams(given.map(([key, value]) => [key, String(value)])).toString();
}

export function fetchMissionPage(filter: MissionFilter, cursor: string | null, signal?: AbortSignal): Promise<MissionPage> {
  return get<MissionPage>(`/missions?${search({ ...filter, limit: PAGE, cursor })}`, signal);
}

export const sessionQuery = queryOptions({
  queryKey: ["session"],
  queryFn: ({ signal }) => get<Session>("/session", signal),
  staleTime: 300_000,
});

export const factorsQuery = queryOptions({
  queryKey: ["factors"],
  queryFn: ({ signal }) => get<FactorList>("/session/factors", signal),
});

export const missionsQuery = (filter: MissionFilter) =>
  infiniteQueryOptions({
    queryKey: ["missions", filter],
    queryFn: ({ pageParam, signal }) => fetchMissionPage(filter, pageParam, signal),
    initialPageParam: null as string | null,
    getNextPageParam: (last) => last.next,
  });

export const missionPath = (mission: string) => `/missions/${encodeURIComponent(mission)}`;

export const missionQuery = (mission: string) =>
  queryOptions({
    queryKey: ["mission", mission],
    queryFn: ({ signal }) => get<MissionDetails>(missionPath(mission), signal),
  });

export const planQuery = (mission: string) =>
  queryOptions({
    queryKey: ["mission", mission, "plan"],
    queryFn: ({ signal }) => get<PlanDocument>(`${missionPath(mission)}/plan`, signal),
  });

export const choicesQuery = (mission: string) =>
  queryOptions({
    queryKey: ["mission", mission, "choices"],
    queryFn: ({ signal }) => get<MissionChoices>(`${missionPath(mission)}/choices`, signal),
  });

/** Not repeated after an error: decisions that are not learned have no forecasts. */
export const forecastQuery = (mission: string) =>
  queryOptions({
    queryKey: ["mission", mission, "forecast"],
    queryFn: ({ signal }) => get<ForecastDocument>(`${missionPath(mission)}/forecast`, signal),
    retry: false,
  });

export const reportQuery = (mission: string) =>
  queryOptions({
    queryKey: ["mission", mission, "report"],
    queryFn: ({ signal }) => get<MissionReport>(`${missionPath(mission)}/report`, signal),
  });

export const checkpointsQuery = (mission: string) =>
  queryOptions({
    queryKey: ["mission", mission, "checkpoints"],
    queryFn: ({ signal }) => get<CheckpointsDocument>(`${missionPath(mission)}/checkpoints`, signal),
  });

export const changesQuery = (mission: string, from: string, to: string) =>
  queryOptions({
    queryKey: ["mission", mission, "changes", from, to],
    queryFn: ({ signal }) => get<DiffDocument>(`${missionPath(mission)}/diff?${search({ old: from, new: to, patch: "false" })}`, signal),
  });

export const fileChangeQuery = (mission: string, path: string, from: string, to: string) =>
  queryOptions({
    queryKey: ["mission", mission, "changes", from, to, path],
    queryFn: ({ signal }) =>
      get<FileDifference>(`${missionPath(mission)}/diff/file?${search({ path, old: from, new: to })}`, signal),
  });

export const reviewQuery = (mission: string) =>
  queryOptions({
    queryKey: ["mission", mission, "review"],
    queryFn: ({ signal }) => get<ChangeReview>(`${missionPath(mission)}/review`, signal),
  });

/** All persons' notes on a change so far. The user's own notes are written by this page and read when it opens. */
export const reviewsQuery = (mission: string) =>
  queryOptions({
    queryKey: ["mission", mission, "reviews"],
    queryFn: ({ signal }) => get<MissionReviews>(`${missionPath(mission)}/reviews`, signal),
  });

export const rollbackQuery = (mission: string) =>
  queryOptions({
    queryKey: ["mission", mission, "rollback"],
    queryFn: ({ signal }) => get<RollbackPreview>(`${missionPath(mission)}/rollback`, signal),
    retry: false,
  });

export const accessQuery = infiniteQueryOptions({
  queryKey: ["access"],
  queryFn: ({ pageParam, signal }) => get<AccessLogPage>(`/access?${search({ limit: PAGE, before: pageParam })}`, signal),
  initialPageParam: null as number | null,
  getNextPageParam: (last) => last.next,
  // No mission's event announces a login.
  staleTime: 0,
});

/** Lists without a dedicated query yet, such as projects, agents and the effective configuration. */
export const listQuery = <T>(path: string) =>
  queryOptions({ queryKey: [path], queryFn: ({ signal }) => get<T>(`/${path}`, signal) });
