import { Page } from "../system/Page";
import { Beliefs } from "./Beliefs";
import "./decisions.css";
import { Networks } from "./Networks";
import { RecentChoices } from "./RecentChoices";
import { Reliability } from "./Reliability";
import { Rollouts } from "./Rollouts";
import { Simulations } from "./Simulations";

/** What choices of agents and models follow from: beliefs, their reliability, recent choices, simulations, roll-outs and belief networks. */
export default function DecisionsPage() {
  return (
    <Page title="Decisions">
      <Beliefs />
      <Reliability />
      <RecentChoices />
      <Simulations />
      <Rollouts />
      <Networks />
    </Page>
  );
}
