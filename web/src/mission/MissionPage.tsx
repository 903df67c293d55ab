import { useQuery } from "@tanstack/react-query";
import { useParams } from "@tanstack/react-router";
import { Suspense } from "react";
import { missionQuery } from "../api/queries";
import type { MissionDetails } from "../api/contract";
import { EmptyState, Loaded, Skeleton } from "../design/states";
import { lookOf } from "../design/Status";
import { firstLine, plainText } from "../format";
import { useTitle } from "../useTitle";
import { MissionHeader } from "./MissionHeader";
import { MissionTabs, TABS } from "./tabs";
import "./mission.css";

export default function MissionPage() {
  const { id, tab = "overview" } = useParams({ strict: false });
  return (
    <Loaded query={useQuery(missionQuery(id ?? ""))} label="Loading the mission">
      {(mission) => <Mission mission={mission} tab={tab} />}
    </Loaded>
  );
}

function Mission({ mission, tab }: { mission: MissionDetails; tab: string }) {
  const title = firstLine(plainText(mission.request?.text ?? mission.mission));
  useTitle(`${lookOf(mission.rolled_back ? "rolled_back" : mission.status).label}: ${title}`);
  const shown = TABS.find(({ id }) => id === tab);
  return (
    <article className="stack mission">
      <MissionHeader mission={mission} title={title} />
      <MissionTabs mission={mission} />
      <section aria-label={shown?.label ?? tab}>
        <Suspense fallback={<Skeleton label="Loading" />}>
          {shown ? <shown.Panel mission={mission} /> : <EmptyState title="A mission has no such page." />}
        </Suspense>
      </section>
    </article>
  );
}
