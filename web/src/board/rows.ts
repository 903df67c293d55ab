/** Turns pages of missions into the rows of the board, tasks below their coordinator, and updates pages. */
import type { ListedMission, MissionPage } from "../api/contract";
import { isLive } from "../mission/facts";

export interface BoardRow {
  mission: ListedMission;
  depth: number;
  /** The number of its tasks in the list. */
  tasks: number;
  expanded: boolean;
}

/**
 * Returns each mission once, in the order of the pages, tasks right after their coordinator.
 *
 * Tasks are shown while their coordinator is not settled; `toggled` holds the coordinators for which a person
 * wants the opposite.
 */
export function boardRows(pages: readonly MissionPage[], toggled: ReadonlySet<string>): BoardRow[] {
  const missions = new Map<string, ListedMission>();
  for (const mission of pages.flatMap((page) => page.missions)) {
    if (!missions.has(mission.mission)) missions.set(mission.mission, mission);
  }
  const children = new Map<string, ListedMission[]>();
  const tops: ListedMission[] = [];
  for (const mission of missions.values()) {
    if (mission.parent === null || !missions.has(mission.parent)) tops.push(mission);
    else children.set(mission.parent, [...(children.get(mission.parent) ?? []), mission]);
  }
  const rows: BoardRow[] = [];
  const add = (mission: ListedMission, depth: number) => {
    const tasks = (children.get(mission.mission) ?? []).toSorted((a, b) => a.created.localeCompare(b.created));
    const expanded = tasks.length > 0 && isLive(mission.status) !== toggled.has(mission.mission);
    rows.push({ mission, depth, tasks: tasks.length, expanded });
    if (expanded) for (const task of tasks) add(task, depth + 1);
  };
  for (const top of tops) add(top, 0);
  return rows;
}

/**
 * Returns the pages to reload after `changed` missions: each page that shows one, and the first page for new ones.
 */
export function stalePages(pages: readonly MissionPage[], changed: ReadonlySet<string>): number[] {
  const shown = (page: MissionPage) =>
    page.missions.some(({ mission, parent }) => changed.has(mission) || (parent !== null && changed.has(parent)));
  const known = new Set(pages.flatMap((page) => page.missions.map(({ mission }) => mission)));
  const hasNew = [...changed].some((mission) => !known.has(mission));
  return pages.flatMap((page, index) => (shown(page) || (index === 0 && hasNew) ? [index] : []));
}

/**
 * Returns a page updated with the server's current rows.
 *
 * New missions push others off its end. The next page does not contain those, so they stay. A changed mission that
 * is missing from the fresh page no longer matches the filter.
 */
export function mergePage(old: MissionPage, fresh: MissionPage, changed: ReadonlySet<string>): MissionPage {
  const has = new Set(fresh.missions.map(({ mission }) => mission));
  const kept = old.missions.filter(({ mission }) => !has.has(mission) && !changed.has(mission));
  return { ...fresh, missions: [...fresh.missions, ...kept], next: old.next };
}
