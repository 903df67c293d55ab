import { expect, it } from "vitest";
import type { ListedMission, MissionPage } from "../api/contract";
import { boardRows, mergePage, stalePages } from "./rows";

function mission(name: string, more: Partial<ListedMission> = {}): ListedMission {
  return { mission: name, parent: null, created: "2026-01-01", status: "running", ...more } as ListedMission;
}

function page(missions: ListedMission[], next: string | null = null): MissionPage {
  return { missions, next, counts: {}, position: 1 };
}

const none: ReadonlySet<string> = new Set();
const names = (pages: MissionPage[], toggled = none) =>
  boardRows(pages, toggled).map(({ mission: { mission: name }, depth }) => `${"-".repeat(depth)}${name}`);

it("nests tasks below their coordinator, the first begun first, and folds them", () => {
  const pages = [
    page([
      mission("t2", { parent: "plan", created: "2026-01-03" }),
      mission("t1", { parent: "plan", created: "2026-01-02" }),
      mission("other"),
      mission("plan"),
    ]),
  ];
  expect(names(pages)).toEqual(["other", "plan", "-t1", "-t2"]);
  expect(names(pages, new Set(["plan"]))).toEqual(["other", "plan"]);
});

it("folds the tasks of a settled coordinator until a person wants them", () => {
  const pages = [page([mission("t1", { parent: "plan" }), mission("plan", { status: "promoted" })])];
  expect(names(pages)).toEqual(["plan"]);
  expect(names(pages, new Set(["plan"]))).toEqual(["plan", "-t1"]);
});

it("shows a task whose coordinator the filter leaves out, and each mission once", () => {
  expect(names([page([mission("t1", { parent: "gone" })]), page([mission("t1", { parent: "gone" })])])).toEqual(["t1"]);
});

it("asks again only for pages that show what changed, and the first for what is new", () => {
  const pages = [page([mission("a")]), page([mission("b")]), page([mission("c", { parent: "b" })])];
  expect(stalePages(pages, new Set(["b"]))).toEqual([1, 2]);
  expect(stalePages(pages, new Set(["new"]))).toEqual([0]);
  expect(stalePages(pages, none)).toEqual([]);
});

it("keeps what a new mission pushes off the page, and drops what left the filter", () => {
  const old = page([mission("a"), mission("b"), mission("c")], "after-c");
  const fresh = page([mission("new"), mission("a", { status: "promoted" })], "after-a");
  const merged = mergePage(old, fresh, new Set(["b", "a", "new"]));
  expect(merged.missions.map(({ mission: name, status }) => [name, status])).toEqual([
    ["new", "running"],
    ["a", "promoted"],
    ["c", "running"],
  ]);
  expect(merged.next).toBe("after-c");
});
