import { Page } from "../system/Page";
import { Beliefs } from "./Beliefs";
import "./decisions.css";
import { Networks } from "./Networks";
import { RecentChoices } from "./RecentChoices";
import { Rollouts } from "./Rollouts";

/** What choices of agents and models follow from: beliefs, recent choices, roll-outs and belief networks. */
export default function DecisionsPage() {
  return (
    <Page title="Decisions">
      <Beliefs />
      <RecentChoices />
      <Rollouts />
      <Networks />
    </Page>
  );
}
