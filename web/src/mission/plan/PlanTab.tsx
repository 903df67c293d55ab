import { useQuery, useQueryClient } from "@tanstack/react-query";
import { lazy, Suspense, useState } from "react";
import type { MissionDetails, PlanDocument } from "../../api/contract";
import { planQuery } from "../../api/queries";
import { Skeleton, EmptyState, Loaded } from "../../design/states";
import { useFeedBatches } from "../../feed/hooks";
import { plainText } from "../../format";
import { useNarrow } from "../../useNarrow";
import { PlanTable } from "./PlanTable";
import "./plan.css";

const PlanGraph = lazy(() => import("./PlanGraph"));

export default function PlanTab({ mission }: { mission: MissionDetails }) {
  const client = useQueryClient();
  const query = useQuery(planQuery(mission.mission));
  const missions = new Set(query.data?.tasks.flatMap((task) => [...task.missions, ...task.reviews.map((review) => review.mission)]));
  useFeedBatches(({ events }) => {
    if (events.some((event) => missions.has(event.mission))) {
      void client.invalidateQueries({ queryKey: planQuery(mission.mission).queryKey });
    }
  });
  return (
    <Loaded query={query} label="Loading the plan">
      {(plan) => (plan.tasks.length > 0 ? <Plan plan={plan} /> : <EmptyState title="A planner still works on the plan." />)}
    </Loaded>
  );
}

function Plan({ plan }: { plan: PlanDocument }) {
  const narrow = useNarrow();
  const [graph, setGraph] = useState(!narrow && plan.tasks.length > 1);
  return (
    <div className="stack">
      <div role="group" aria-label="Show the plan as" className="row">
        <button type="button" className="chip" aria-pressed={graph} onClick={() => setGraph(true)}>
          Graph
        </button>
        <button type="button" className="chip" aria-pressed={!graph} onClick={() => setGraph(false)}>
          Table only
        </button>
      </div>
      {graph && (
        <Suspense fallback={<Skeleton rows={4} label="Loading the graph" />}>
          <PlanGraph plan={plan} />
        </Suspense>
      )}
      <PlanTable plan={plan} />
      <Collisions plan={plan} />
    </div>
  );
}

function Collisions({ plan }: { plan: PlanDocument }) {
  if (plan.collisions.length === 0) return null;
  return (
    <section className="card stack">
      <h2>Not side by side</h2>
      <ul>
        {plan.collisions.map(({ tasks, reason }) => (
          <li key={tasks.join(" ")} className="wrap">
            <span className="mono">{tasks.join(", ")}</span>: {plainText(reason.message)}
          </li>
        ))}
      </ul>
    </section>
  );
}
