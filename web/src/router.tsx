import { QueryClient } from "@tanstack/react-query";
import { createRootRouteWithContext, createRoute, createRouter, lazyRouteComponent, Outlet, redirect } from "@tanstack/react-router";
import { ApiError, get, whenSessionLost } from "./api/client";
import type { MissionPage } from "./api/contract";
import { missionsQuery, sessionQuery } from "./api/queries";
import { BoardPage } from "./board/BoardPage";
import { readFilter } from "./board/filter";
import { EmptyState } from "./design/states";
import { PageError } from "./PageError";
import { feed } from "./feed/hooks";
import { LoginPage } from "./login/LoginPage";
import { Shell } from "./shell/Shell";

export const client = new QueryClient({
  defaultOptions: {
    queries: {
      // The feed reports changes, so no query polls.
      staleTime: 30_000,
      refetchOnWindowFocus: false,
      retry: (failures, error) => failures < 2 && (!(error instanceof ApiError) || error.status >= 500 || error.status === 0),
    },
  },
});

const root = createRootRouteWithContext<{ client: QueryClient }>()({
  component: Outlet,
  notFoundComponent: () => <EmptyState title="There is no such page." />,
  errorComponent: PageError,
});

const login = createRoute({
  getParentRoute: () => root,
  path: "/login",
  component: LoginPage,
  validateSearch: (search: Record<string, unknown>): { back?: string } =>
    typeof search["back"] === "string" ? { back: search["back"] } : {},
});

const app = createRoute({
  getParentRoute: () => root,
  id: "app",
  component: Shell,
  beforeLoad: async ({ context, location }) => {
    const begun = beginFeed(context.client, location);
    try {
      await context.client.query({ ...sessionQuery, retry: false, staleTime: "static" });
      await begun;
    } catch (failure) {
      if (failure instanceof ApiError && failure.status === 401) {
        // eslint-disable-next-line @typescript-eslint/only-throw-error
        throw redirect({ to: "/login", search: location.href === "/" ? {} : { back: location.href } });
      }
      throw failure;
    }
  },
});

let begins = false;

/**
 * Requests the log's position in parallel with the session: through the board's first page if the board is shown.
 */
async function beginFeed(client: QueryClient, { pathname, search }: { pathname: string; search: Record<string, unknown> }) {
  if (begins) return;
  try {
    const board = { ...missionsQuery(readFilter(search)), retry: false, staleTime: "static" as const };
    const first = pathname === "/" ? (await client.infiniteQuery(board)).pages[0] : await get<MissionPage>("/missions?limit=1");
    begins = first !== undefined;
    if (first) feed.begin(first.position);
  } catch {
    // The feed asks by itself later, and then treats everything shown as stale.
  }
}

const board = createRoute({ getParentRoute: () => app, path: "/", component: BoardPage, validateSearch: readFilter });

const mission = createRoute({
  getParentRoute: () => app,
  path: "/missions/$id",
  component: lazyRouteComponent(() => import("./mission/MissionPage")),
});

const missionTab = createRoute({
  getParentRoute: () => app,
  path: "/missions/$id/$tab",
  component: lazyRouteComponent(() => import("./mission/MissionPage")),
  validateSearch: (search: Record<string, unknown>) => search as Record<string, string | undefined>,
});

const agents = createRoute({ getParentRoute: () => app, path: "/agents", component: lazyRouteComponent(() => import("./system/AgentsPage")) });
const projects = createRoute({ getParentRoute: () => app, path: "/projects", component: lazyRouteComponent(() => import("./system/ProjectsPage")) });
const system = createRoute({ getParentRoute: () => app, path: "/system", component: lazyRouteComponent(() => import("./system/SystemPage")) });
const statistics = createRoute({ getParentRoute: () => app, path: "/statistics", component: lazyRouteComponent(() => import("./statistics/StatisticsPage")) });
const decisions = createRoute({ getParentRoute: () => app, path: "/decisions", component: lazyRouteComponent(() => import("./decisions/DecisionsPage")) });
const accounts = createRoute({ getParentRoute: () => app, path: "/accounts", component: lazyRouteComponent(() => import("./accounts/AccountsPage")) });
const settings = createRoute({ getParentRoute: () => app, path: "/settings", component: lazyRouteComponent(() => import("./system/SettingsPage")) });

export const router = createRouter({
  routeTree: root.addChildren([login, app.addChildren([board, mission, missionTab, agents, projects, statistics, decisions, system, settings, accounts])]),
  context: { client },
  // Replaces only the page that failed: the frame around it stays.
  defaultErrorComponent: PageError,
  scrollRestoration: true,
});

whenSessionLost(() => {
  const { pathname, href } = router.state.location;
  if (pathname === "/login") return;
  client.removeQueries({ queryKey: ["session"] });
  void router.navigate({ to: "/login", search: { back: href } });
});

declare module "@tanstack/react-router" {
  interface Register {
    router: typeof router;
  }
}
